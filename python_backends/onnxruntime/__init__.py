"""Triton backend `onnxruntime`: serves any ONNX file as NVIDIA's native backend of that name does, where that
is not installed.

Differences from the native backend: inputs with `allow_ragged_batch` run per shape instead of flattened;
`batch_input`, `batch_output` and implicit sequence state are refused at load; wrong input gets INVALID_ARG,
not INTERNAL; strings must be UTF-8; `--backend-config=onnxruntime,...` is ignored; and instances share the
CPUs by default (`runtime/engines/session.py` says why).
"""
