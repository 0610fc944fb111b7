"""What the gateway's hop costs, by perf_analyzer; `python -m perf.smoke`."""
