"""Sixteen models on three Tritons with room for four each, under a trace; `python -m perf.fleet`."""
