"""What a latency budget gains; `python -m perf.budgets`."""
