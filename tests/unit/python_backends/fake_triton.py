"""Triton's side of the edge: its Python module and its requests, as far as the backends use them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

MODULE = "triton_python_backend_utils"


class Tensor:
    """`pb_utils.Tensor`."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


@dataclass
class TritonError:
    """`pb_utils.TritonError`, whose codes are numbers like Triton's own."""

    INTERNAL, INVALID_ARG, CANCELLED = 1, 3, 7

    message: str
    code: int


@dataclass
class InferenceResponse:
    """`pb_utils.InferenceResponse`."""

    output_tensors: list[Tensor] = field(default_factory=list)
    error: TritonError | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        assert self.error is None, self.error
        return {tensor.name(): tensor.as_numpy() for tensor in self.output_tensors}


@dataclass
class Request:
    """A `pb_utils.InferenceRequest` as `execute` gets it; `cancellation_checks` counts the round trips that asking would cost."""

    tensors: Mapping[str, np.ndarray]
    outputs: tuple[str, ...]
    cancelled: bool = False
    cancellation_checks: int = 0

    def inputs(self) -> list[Tensor]:
        return [Tensor(name, array) for name, array in self.tensors.items()]

    def requested_output_names(self) -> list[str]:
        return list(self.outputs)

    def is_cancelled(self) -> bool:
        self.cancellation_checks += 1
        return self.cancelled


@dataclass
class AutoCompleteConfig:
    """The `ModelConfig` that `auto_complete_config` is given."""

    config: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return self.config


def initialize_args(version_directory: Path, model_config: str, *, kind: str = "CPU") -> dict[str, str]:
    """What Triton passes to `initialize`."""
    return {
        "model_config": model_config,
        "model_instance_kind": kind,
        "model_instance_device_id": "0",
        "model_repository": str(version_directory.parent),
        "model_version": version_directory.name,
    }


@contextmanager
def stub(backend: str, model_directory: Path) -> Iterator[Any]:
    """The backend's class as a stub imports it: beside a `triton_python_backend_utils` that gets its classes only afterwards."""
    pb_utils: Any = ModuleType(MODULE)
    sys.modules[MODULE] = pb_utils
    try:
        model = importlib.import_module(f"python_backends.{backend}.model")
        for member in (Tensor, TritonError, InferenceResponse):
            setattr(pb_utils, member.__name__, member)
        pb_utils.get_model_dir = lambda: str(model_directory)
        yield model.TritonPythonModel
    finally:
        # These hold on to this fake, and the next test brings its own.
        for name in (f"python_backends.{backend}.model", "python_backends.runtime.triton", MODULE):
            sys.modules.pop(name, None)
