"""Rollouts one after the other on a real fleet under load, and versions that are bad in all ways; `python -m perf.rollouts`."""
