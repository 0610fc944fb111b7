"""What it gains callers of a language model that their answers share steps; `python -m perf.generation`."""
