"""What an answer from the cache costs; `python -m perf.cache_hits`."""
