"""Signature of a model's file (its inputs and outputs in Triton's types), and its check against a model
configuration.

The rules are the native backend's (`ValidateInputs`, `ValidateOutputs`, `CompareDimsSupported` in
onnxruntime_backend r24.10), so that a configuration which loads here also loads there. Where the native
backend says only "unexpected", the errors here also say what is expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from python_backends.runtime.errors import ConfigError
from python_backends.runtime.model_config import ModelConfig, TensorConfig

# Data types that ONNX Runtime and Triton 24.10 share. BF16 is missing, since NumPy and so Triton's Python
# backend lack it.
DATA_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}


class NodeArg(Protocol):
    """Description of an input or output by ONNX Runtime; a dimension is an int, a symbol or None."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> Sequence[int | str | None]: ...


class Session(Protocol):
    """The part of an ONNX Runtime session that describes it."""

    def get_inputs(self) -> Sequence[NodeArg]: ...
    def get_outputs(self) -> Sequence[NodeArg]: ...
    def get_overridable_initializers(self) -> Sequence[NodeArg]: ...


@dataclass(frozen=True, slots=True)
class TensorSignature:
    """An input or output of a model's file: Triton's data type, and the shape with the batch dimension, -1
    where dynamic.
    """

    name: str
    data_type: str
    shape: tuple[int, ...]

    @property
    def starts_dynamic(self) -> bool:
        """Whether the first dimension can be a batch."""
        return self.shape[:1] == (-1,)


@dataclass(frozen=True, slots=True)
class Signature:
    """All inputs and outputs of a model's file; `initializers` are inputs that have a value of their own and
    may be left out.
    """

    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]
    initializers: tuple[TensorSignature, ...] = ()

    @property
    def is_batchable(self) -> bool:
        """Whether every input and output has a dynamic first dimension."""
        return all(tensor.starts_dynamic for tensor in (*self.inputs, *self.outputs))


def read_signature(session: Session) -> Signature:
    """Read it from a session.

    Raises:
        ConfigError: An input or output is not a tensor, or has a data type that Triton's Python backend
        cannot carry.
    """
    return Signature(
        inputs=tuple(_tensor(arg) for arg in session.get_inputs()),
        outputs=tuple(_tensor(arg) for arg in session.get_outputs()),
        initializers=tuple(_tensor(arg) for arg in session.get_overridable_initializers()),
    )


def check_signature(config: ModelConfig, signature: Signature) -> None:
    """Check names, data types and dims of a complete configuration against the file; outputs may be a subset
    of the file's.

    Raises:
        ConfigError: They differ; the text says where, what is configured and what the file has.
    """
    _check_input_names(config, signature)
    file_inputs = {tensor.name: tensor for tensor in (*signature.inputs, *signature.initializers)}
    for tensor in config.inputs:
        if tensor.optional and config.max_batch_size:
            raise ConfigError(f"model '{config.name}': optional input '{tensor.name}' is not supported for models that support batching")
        _check_tensor(config, "input", tensor, file_inputs[tensor.name])
    file_outputs = {tensor.name: tensor for tensor in signature.outputs}
    for tensor in config.outputs:
        if tensor.name not in file_outputs:
            raise _unexpected(config, "output", [tensor.name], file_outputs)
        _check_tensor(config, "output", tensor, file_outputs[tensor.name])


def _tensor(arg: NodeArg) -> TensorSignature:
    if arg.type not in DATA_TYPES:
        raise ConfigError(f"'{arg.name}' of the ONNX file is a {arg.type}, which cannot be served; supported are {', '.join(DATA_TYPES)}")
    return TensorSignature(arg.name, DATA_TYPES[arg.type], tuple(dim if isinstance(dim, int) else -1 for dim in arg.shape))


def _check_input_names(config: ModelConfig, signature: Signature) -> None:
    configured = {tensor.name for tensor in config.inputs} | set(config.control_inputs)
    required = {tensor.name for tensor in signature.inputs}
    allowed = required | {tensor.name for tensor in signature.initializers}
    if unexpected := sorted(configured - allowed):
        raise _unexpected(config, "input", unexpected, allowed)
    if missing := sorted(required - configured):
        raise ConfigError(
            f"model '{config.name}': the model's file also needs the input(s) {', '.join(missing)}, which the configuration lacks"
        )


def _unexpected(config: ModelConfig, what: str, names: Sequence[str], allowed: Iterable[str]) -> ConfigError:
    return ConfigError(f"model '{config.name}': unexpected {what} '{', '.join(names)}', the model's file has: {', '.join(sorted(allowed))}")


def _check_tensor(config: ModelConfig, what: str, tensor: TensorConfig, actual: TensorSignature) -> None:
    where = f"model '{config.name}', {what} '{tensor.name}'"
    if tensor.data_type != actual.data_type:
        raise ConfigError(f"{where}: the configuration says {tensor.data_type}, the model's file has {actual.data_type}")
    has_batch = config.max_batch_size > 0
    if has_batch and not actual.starts_dynamic:
        raise ConfigError(
            f"{where}: for the model to support batching the first dimension must be dynamic, but the model's file has the shape "
            f"{list(actual.shape)}: set max_batch_size to 0 or export it with a dynamic batch"
        )
    configured = (-1, *tensor.dims) if has_batch else tensor.dims
    if not _dims_agree(configured, actual.shape, exactly=what == "output"):
        first = " (the first is the batch, because max_batch_size > 0)" if has_batch else ""
        raise ConfigError(f"{where}: the configuration says the shape {list(configured)}{first}, the model's file has {list(actual.shape)}")


def _dims_agree(configured: Sequence[int], actual: Sequence[int], *, exactly: bool) -> bool:
    if not actual:
        # A scalar has no dims in ONNX; a configuration, which cannot say so, writes [ 1 ].
        return all(dim == 1 for dim in configured)
    if len(configured) != len(actual):
        return False
    # An input may be configured narrower than the file; an output may not, as nobody would check it.
    return all(want == have or (have == -1 and not exactly) for want, have in zip(configured, actual, strict=True))
