"""Embedding texts beside what people first write; `python -m perf.embedding`."""
