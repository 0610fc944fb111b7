"""Steps that make a variant of a model: observing, pruning, quantising, PyTorch programs and TensorRT engines."""
