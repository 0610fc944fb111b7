"""What callers see in a long time of steady traffic, and in a spike in its middle; `python -m perf.soak`."""
