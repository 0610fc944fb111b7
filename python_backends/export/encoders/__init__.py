"""Sentence encoders as published: weights, graphs in ONNX and PyTorch, and the trial of their variants."""
