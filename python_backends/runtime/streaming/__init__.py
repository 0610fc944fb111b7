"""Weight streaming: a model computes with a bounded part of its weights in memory.

Of ONNX models `onnx_graph` reads a file's graph without its weights, `parts` cuts it, `weight_file` reads weights into two
buffers in turn, and `streamed` is the runtime that runs one part while the next one's weights are read. Of language models
on a GPU `layer_plan` decides which layers stay there, and `streamed_layers` copies the others while they compute.
"""
