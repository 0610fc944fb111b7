"""What services need of the world outside; adapters implement these, tests have fakes of them.

Adapters translate their client's exceptions into `domain.errors`; an answer of Triton's, good or bad, is a value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from control_plane.codec.http_message import HttpAnswer, HttpRequest
from control_plane.domain.endpoints import TritonEndpoints
from control_plane.domain.inference import Door, Outcome
from control_plane.domain.model import ModelVersion

GrpcMetadata = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True)
class GrpcCall:
    """A unary call as it came in: `method` is the full path, `message` the serialised request."""

    method: str
    message: bytes
    metadata: GrpcMetadata = ()


@dataclass(frozen=True, slots=True)
class GrpcAnswer:
    """What came back: a serialised response, or a status other than OK (0) with its text."""

    message: bytes
    code: int
    details: str
    trailing_metadata: GrpcMetadata = ()


class HttpUpstream(Protocol):
    """Triton's HTTP endpoint over pooled keep-alive connections."""

    async def send(self, request: HttpRequest, *, timeout_s: float) -> HttpAnswer:
        """Raises UpstreamUnavailable (no connection, or it broke) and DeadlineExceeded. Cancelling drops the connection."""

    async def close(self) -> None: ...


class GrpcUpstream(Protocol):
    """Triton's gRPC endpoint."""

    async def unary(self, call: GrpcCall, *, timeout_s: float) -> GrpcAnswer:
        """Any status, also of a broken connection, is in the answer. Cancelling cancels the call in Triton."""

    async def close(self) -> None: ...


class ModelControl(Protocol):
    """Triton's model repository API, over gRPC only: over HTTP ten loads hold all its threads (server 24.10)."""

    async def is_live(self) -> bool: ...

    async def index(self) -> list[ModelVersion]:
        """Every model directory Triton sees, with state and reason. Raises UpstreamUnavailable, UpstreamFailed."""

    async def load(self, name: str, *, timeout_s: float) -> None:
        """Return when the model is ready. Raises ModelLoadFailed, DeadlineExceeded, UpstreamUnavailable."""

    async def unload(self, name: str, *, timeout_s: float) -> None:
        """Return when Triton has accepted it; in-flight requests finish first. Raises as `load`."""

    async def memory_bytes(self) -> dict[str, int]:
        """Resident bytes by model, for the backends that report them."""


class Upstream(Protocol):
    """One connected Triton."""

    @property
    def http(self) -> HttpUpstream: ...

    @property
    def grpc(self) -> GrpcUpstream: ...

    @property
    def control(self) -> ModelControl: ...

    async def metrics_text(self) -> bytes:
        """Triton's own Prometheus page; empty where there is none. Raises UpstreamUnavailable."""

    async def close(self) -> None:
        """Close every pooled connection: one idle keep-alive connection holds up Triton's exit (server 24.10)."""


Connect = Callable[[TritonEndpoints], Upstream]


class TritonProcess(Protocol):
    """One life of an embedded Triton."""

    @property
    def endpoints(self) -> TritonEndpoints: ...

    async def wait(self) -> str:
        """Return when it has ended: how, with the tail of its log."""

    async def stop(self, *, grace_s: float) -> None:
        """End it and everything it started, in `grace_s` at most; return when all is gone. Idempotent."""


class TritonLauncher(Protocol):
    """Starts embedded Tritons."""

    async def start(self) -> TritonProcess:
        """Start one; it need not be live yet. Raises StartupError when it cannot be started at all."""


class ModelRepository(Protocol):
    """The folders that models come from, placed under the root that Triton reads."""

    def names(self) -> list[str]:
        """Every model in the sources now. Raises StartupError when two sources hold one name."""

    def place_all(self) -> None:
        """Place every model that can be placed, and remove placed ones whose source is gone."""

    def place(self, name: str) -> None:
        """Bring the placed copy (of an ensemble's composing models too) up to the source. Raises ModelNotFound."""


class RequestRecorder(Protocol):
    """Counts what the gateway answered."""

    def record(self, *, model_name: str, door: Door, outcome: Outcome, duration_s: float) -> None: ...
