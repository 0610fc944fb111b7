"""What asynchronous jobs cost callers who wait, and what they get; `python -m perf.jobs`."""
