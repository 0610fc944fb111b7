"""What the cache does for texts that repeat; `python -m perf.repeats`."""
