"""Engines that run a model file: ONNX Runtime, PyTorch and TensorRT, on a CPU or a GPU."""
