"""Probe of the GPU: tries which libraries compute on it. A program for the Python that Triton's stubs run in.

    python -I gpu_probe.py

Prints a JSON object: library -> empty text, or why it does not work. A process of its own, since some
libraries end their process when the driver is broken.
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode
from collections.abc import Callable

_DOUBLING = b64decode("CAgSADo1Cg4KAXgKAXgSAXkiA0FkZBIBZ1oPCgF4EgoKCAgBEgQKAggBYg8KAXkSCgoICAESBAoCCAFCBAoAEBE=")
"""An ONNX model (opset 17): x [1] FP32 -> y = x + x."""

_MAX_CHARACTERS = 300
"""Characters shown of a library's own error message."""


def main() -> None:
    found = {name: _why_not(compute) for name, compute in (("onnxruntime", _onnxruntime), ("torch", _torch), ("tensorrt", _tensorrt))}
    sys.stdout.write(json.dumps(found))


def _why_not(compute: Callable[[], None]) -> str:
    try:
        compute()
    except ModuleNotFoundError:
        return "not installed"
    except Exception as exc:
        return (str(exc).strip() or type(exc).__name__)[:_MAX_CHARACTERS]
    return ""


def _onnxruntime() -> None:
    import numpy as np
    import onnxruntime

    available = onnxruntime.get_available_providers()
    if "CUDAExecutionProvider" not in available:
        raise RuntimeError(f"this build has no CUDAExecutionProvider, but {', '.join(available)}")
    session = onnxruntime.InferenceSession(_DOUBLING, providers=["CUDAExecutionProvider"])
    if "CUDAExecutionProvider" not in session.get_providers():  # ONNX Runtime falls back to the CPU, and only logs why
        raise RuntimeError("its CUDAExecutionProvider does not start here")
    session.run(None, {"x": np.ones(1, np.float32)})


def _torch() -> None:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError(f"version {torch.__version__} finds no GPU")
    torch.ones(1, device="cuda").add_(1).item()


def _tensorrt() -> None:
    import tensorrt

    tensorrt.Builder(tensorrt.Logger(tensorrt.Logger.ERROR))


if __name__ == "__main__":
    main()
