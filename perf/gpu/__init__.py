"""Embedding texts on a GPU; `python -m perf.gpu`."""
