"""Fakes of Triton's Python module and requests, as far as the backends use them."""

from __future__ import annotations

import importlib
import queue
import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

MODULE = "triton_python_backend_utils"


class Tensor:
    """Fake of `pb_utils.Tensor`."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


@dataclass
class TritonError:
    """Fake of `pb_utils.TritonError`, whose codes are numbers like Triton's own."""

    INTERNAL, INVALID_ARG, UNAVAILABLE, CANCELLED = 1, 3, 4, 7

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


FINAL = 1


@dataclass
class ResponseSender:
    """`pb_utils.InferenceResponseSender`: what it sent, and whether more may follow."""

    sent: queue.SimpleQueue[InferenceResponse] = field(default_factory=queue.SimpleQueue)
    final: bool = False

    def send(self, response: InferenceResponse, *, flags: int) -> None:
        assert not self.final, "an answer after the last"
        self.final = flags == FINAL
        self.sent.put(response)


class MetricFamily:
    """`pb_utils.MetricFamily`; `values` has what its metrics have reached, by name and labels."""

    COUNTER, GAUGE = 0, 1
    values: ClassVar[dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}

    def __init__(self, *, name: str, description: str, kind: int) -> None:
        assert description
        assert kind in (self.COUNTER, self.GAUGE)
        self.name = name

    def Metric(self, *, labels: dict[str, str]) -> Metric:  # noqa: N802 - Triton's name
        return Metric((self.name, tuple(sorted(labels.items()))))


@dataclass
class Metric:
    """`pb_utils.Metric`."""

    key: tuple[str, tuple[tuple[str, str], ...]]

    def increment(self, value: float) -> None:
        MetricFamily.values[self.key] = MetricFamily.values.get(self.key, 0.0) + value

    def set(self, value: float) -> None:
        MetricFamily.values[self.key] = value
        # Triton forgets it with its last reference.
        weakref.finalize(self, MetricFamily.values.pop, self.key, None)


class Logger:
    """Fake of `pb_utils.Logger`; `lines` has the messages."""

    lines: ClassVar[list[str]] = []

    @classmethod
    def log_info(cls, line: str) -> None:
        cls.lines.append(line)


@dataclass
class Request:
    """Fake of `pb_utils.InferenceRequest`; `cancellation_checks` counts checks, each of which would be a
    round trip.
    """

    tensors: Mapping[str, np.ndarray]
    outputs: tuple[str, ...]
    cancelled: bool = False
    cancellation_checks: int = 0
    sender: ResponseSender = field(default_factory=ResponseSender)
    given: str = "{}"
    """Its parameters as JSON."""
    timeout_microseconds: int = 0
    """Its parameter `timeout`; 0: it has none."""

    def parameters(self) -> str:
        return self.given

    def timeout(self) -> int:
        return self.timeout_microseconds

    def get_response_sender(self) -> ResponseSender:
        return self.sender

    def inputs(self) -> list[Tensor]:
        return [Tensor(name, array) for name, array in self.tensors.items()]

    def requested_output_names(self) -> list[str]:
        return list(self.outputs)

    def is_cancelled(self) -> bool:
        self.cancellation_checks += 1
        return self.cancelled


@dataclass
class AutoCompleteConfig:
    """Fake of the `ModelConfig` that `auto_complete_config` gets."""

    config: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return self.config


def initialize_args(version_directory: Path, model_config: str, *, kind: str = "CPU") -> dict[str, str]:
    """Make the arguments that Triton passes to `initialize`."""
    return {
        "model_config": model_config,
        "model_instance_kind": kind,
        "model_instance_device_id": "0",
        "model_repository": str(version_directory.parent),
        "model_version": version_directory.name,
    }


@contextmanager
def stub(backend: str, model_directory: Path) -> Iterator[Any]:
    """Import the backend's class as a stub does: `triton_python_backend_utils` gets its classes only
    afterwards.
    """
    pb_utils: Any = ModuleType(MODULE)
    MetricFamily.values.clear()
    Logger.lines.clear()
    sys.modules[MODULE] = pb_utils
    try:
        model = importlib.import_module(f"python_backends.{backend}.model")
        for member in (Tensor, TritonError, InferenceResponse, MetricFamily, Logger):
            setattr(pb_utils, member.__name__, member)
        pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
        pb_utils.get_model_dir = lambda: str(model_directory)
        yield model.TritonPythonModel
    finally:
        # These hold on to this fake, and the next test brings its own.
        modules = ("runtime.triton", "runtime.served_variant", "batching.metrics", f"{backend}.model")
        for name in (MODULE, *(f"python_backends.{module}" for module in modules)):
            sys.modules.pop(name, None)
