"""Triton backend `onnxruntime`: serves any ONNX file as NVIDIA's native backend of that name would, where that one is not installed.

Differences: inputs with `allow_ragged_batch` are run per shape instead of flattened; `batch_input`, `batch_output` and implicit sequence
state are refused at load; wrong input is answered INVALID_ARG, not INTERNAL; strings must be UTF-8; `--backend-config=onnxruntime,...` is
not seen; and instances share the CPUs by default (`runtime/session.py` says why).
"""
