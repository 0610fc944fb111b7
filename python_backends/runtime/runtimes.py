"""Common interface of the runtimes (ONNX Runtime, PyTorch, TensorRT), and the function that opens a variant
with its runtime.

A runtime's module is imported only when a variant needs it, since each loads a heavy library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Protocol

from python_backends.runtime.engines.cpu import THREADS_PARAMETER
from python_backends.runtime.errors import ConfigError
from python_backends.runtime.execution import Array, Tensors
from python_backends.runtime.model_config import ModelConfig
from python_backends.runtime.signature import Signature
from python_backends.runtime.streaming.budget import PARAMETER, weight_memory_bytes
from python_backends.runtime.variants.variant import RUNTIMES
from python_backends.runtime.variants.variant_choice import Variant


class Runtime(Protocol):
    """A loaded model."""

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of the model's file, for `check_signature`."""
        ...

    def run(self, output_names: Sequence[str], inputs: Tensors) -> Sequence[Array]:
        """Compute the named outputs, in that order; thread-safe. The returned arrays are not reused by later
        calls.

        Raises:
            RequestError: The inputs do not match the model.
            ExecutionError: The model failed on valid inputs.
        """
        ...

    def close(self) -> None:
        """Release memory and devices. Nothing may be running, and nothing may run afterwards."""
        ...


def open_runtime(variant: Variant, config: ModelConfig, *, kind: str, device_id: int, threads: int | None = None) -> Runtime:
    """Load a variant for an instance of `kind` ("CPU", "GPU", ...) on `device_id`; `threads` overrides the
    configuration's count.

    Raises:
        ConfigError: The file, the configuration and this machine do not match.
    """
    if variant.runtime not in RUNTIMES:
        raise ConfigError(f"model '{config.name}': unknown runtime '{variant.runtime}', known are: {', '.join(RUNTIMES)}")
    if variant.runtime != "onnxruntime" and weight_memory_bytes(config) is not None:
        raise ConfigError(f"model '{config.name}': parameter '{PARAMETER}' is for the runtime 'onnxruntime', not '{variant.runtime}'")
    if threads is not None:
        config = replace(config, parameters={**config.parameters, THREADS_PARAMETER: str(threads)})
    runtime: Runtime = import_module(RUNTIMES[variant.runtime]).open_model(variant.file, config, kind=kind, device_id=device_id)
    return runtime
