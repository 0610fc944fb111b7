"""What worker processes and CPUs of their own gain; `python -m perf.processes`."""
