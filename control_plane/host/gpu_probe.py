"""Which libraries compute on this machine's GPU, tried by computing on it: a program of its own, for the Python that stubs run in.

    python -I gpu_probe.py

Prints JSON: by library an empty text, or why not. Apart from the process that asks, since some of them end it on a broken driver.
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode
from collections.abc import Callable

_DOUBLING = b64decode("CAgSADo1Cg4KAXgKAXgSAXkiA0FkZBIBZ1oPCgF4EgoKCAgBEgQKAggBYg8KAXkSCgoICAESBAoCCAFCBAoAEBE=")
"""An ONNX model (opset 17): x [1] FP32 -> y = x + x."""

_MOST_CHARACTERS = 300
"""Of a library's own words."""


def main() -> None:
    found = {name: _why_not(compute) for name, compute in (("onnxruntime", _onnxruntime), ("torch", _torch), ("tensorrt", _tensorrt))}
    sys.stdout.write(json.dumps(found))


def _why_not(compute: Callable[[], None]) -> str:
    try:
        compute()
    except ModuleNotFoundError:
        return "not installed"
    except Exception as exc:
        return (str(exc).strip() or type(exc).__name__)[:_MOST_CHARACTERS]
    return ""


def _onnxruntime() -> None:
    import numpy as np
    import onnxruntime

    available = onnxruntime.get_available_providers()
    if "CUDAExecutionProvider" not in available:
        raise RuntimeError(f"this build has no CUDAExecutionProvider, but {', '.join(available)}")
    session = onnxruntime.InferenceSession(_DOUBLING, providers=["CUDAExecutionProvider"])
    if "CUDAExecutionProvider" not in session.get_providers():  # it goes on with the CPU, and logs why
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
