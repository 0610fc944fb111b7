"""Conversion of strings and scalars, which Triton and ONNX Runtime represent differently."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from python_backends.runtime.execution import Array, Run, Tensors
from python_backends.runtime.model_config import ModelConfig
from python_backends.runtime.signature import Signature
from python_backends.runtime.text import decode_utf8


def decode_strings(inputs: Tensors) -> Tensors:
    """Convert BYTES inputs to arrays of str: ONNX Runtime would use the `repr` of bytes.

    Raises:
        RequestError: An element is not UTF-8, which ONNX strings are by definition.
    """
    return {name: _as_text(array, name) if array.dtype == np.object_ else array for name, array in inputs.items()}


def with_scalars(run: Run, config: ModelConfig, signature: Signature) -> Run:
    """Wrap `run` for a model with scalars, which a configuration declares as `dims: [ 1 ]`; without scalars
    return `run`.
    """
    tensors = (*signature.inputs, *signature.initializers, *signature.outputs)
    scalars = {tensor.name for tensor in tensors if not tensor.shape}
    if not scalars:
        return run
    output_dims = {tensor.name: tensor.dims for tensor in config.outputs if tensor.name in scalars}

    def run_with_scalars(output_names: Sequence[str], inputs: Tensors) -> Sequence[Array]:
        feed = {name: array.reshape(()) if name in scalars else array for name, array in inputs.items()}
        outputs = zip(output_names, run(output_names, feed), strict=True)
        return [np.reshape(array, output_dims[name]) if name in scalars else array for name, array in outputs]

    return run_with_scalars


def _as_text(array: Array, name: str) -> Array:
    return np.array(decode_utf8(array, name), dtype=np.object_).reshape(array.shape)
