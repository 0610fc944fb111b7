"""What it costs a language model to have only a part of its weights on its GPU; `python -m perf.streaming_gpu`."""
