"""Length-aware batching beside other ways of batching; `python -m perf.batching`."""
