"""Which answers to keep, on traces; `python -m perf.eviction`."""
