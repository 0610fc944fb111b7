"""What it costs a model to have only a part of its weights in memory; `python -m perf.streaming`."""
