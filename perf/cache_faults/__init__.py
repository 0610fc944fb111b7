"""What callers feel of a second level of the cache that fails; `python -m perf.cache_faults`."""
