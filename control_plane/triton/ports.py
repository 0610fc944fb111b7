"""Tritons: what is asked of them, and how they are started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from control_plane.core.endpoints import Endpoints
from control_plane.core.fingerprint import LoadedConfig
from control_plane.core.model import ModelOverride, ModelVersion
from control_plane.core.principal import NOBODY, Principal
from control_plane.protocols.grpc import GrpcAnswer, GrpcHead, MessageFrame
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.protocols.http2.headers import Fields
from control_plane.triton.compute_time import ComputeTime


@dataclass(frozen=True, slots=True)
class GrpcCall:
    """A unary call as it came in: its head, and its one message with the length before it."""

    head: GrpcHead
    frame: MessageFrame
    principal: Principal = NOBODY


class HttpStream(Protocol):
    """An answer of Triton's that comes piece by piece; `close` it in any case."""

    @property
    def status(self) -> int: ...

    @property
    def head(self) -> bytes:
        """As it came; it says that the body is chunked."""

    async def receive(self) -> bytes | None:
        """The next piece, None at the end. Raises UpstreamUnavailable when it breaks off, DeadlineExceeded."""

    def close(self) -> None:
        """Give it up when it is not at its end. Idempotent."""


class HttpUpstream(Protocol):
    """Triton's HTTP endpoint over pooled keep-alive connections."""

    async def send(self, request: HttpRequest, *, timeout_s: float, model_name: str = "") -> HttpAnswer:
        """`model_name` shares the connections among models that exist. Cancelling drops the connection.

        Raises: UpstreamUnavailable (no connection, or it broke), DeadlineExceeded.
        """

    async def stream(self, request: HttpRequest, *, timeout_s: float, model_name: str = "") -> HttpAnswer | HttpStream:
        """As `send`, for a call whose answer may come piece by piece; then `timeout_s` bounds the wait for each piece."""

    async def close(self) -> None: ...


class GrpcStream(Protocol):
    """A streaming call to Triton, as a caller's own stream: several callers never share one."""

    @property
    def headers(self) -> Fields:
        """Triton's head; empty until its first message, and where it sent none."""

    @property
    def trailers(self) -> Fields:
        """How it ended, once `receive` has returned None."""

    async def send(self, frame: MessageFrame) -> None:
        """Send one message; returns when Triton has room for the next."""

    def half_close(self) -> None:
        """Say that no more messages follow."""

    async def receive(self) -> MessageFrame | None:
        """The next message, None at the end."""

    def cancel(self) -> None:
        """End it at Triton too. Idempotent."""


class GrpcUpstream(Protocol):
    """Triton's gRPC endpoint."""

    async def unary(self, call: GrpcCall, *, timeout_s: float) -> GrpcAnswer:
        """Any status, also of a broken connection, is in the answer. Cancelling cancels the call in Triton."""

    async def open_stream(self, head: GrpcHead, *, timeout_s: float) -> GrpcStream:
        """Open a call that streams both ways. Raises UpstreamUnavailable when no connection is to be had in `timeout_s`."""

    async def close(self) -> None: ...


class ModelStatisticsSource(Protocol):
    """What Triton has counted."""

    async def compute_times(self) -> dict[str, ComputeTime]:
        """By model, all versions together; only models that batch or are batched tell it. Raises UpstreamUnavailable, UpstreamFailed."""


class ModelControl(ModelStatisticsSource, Protocol):
    """Triton's model repository API, over gRPC only: over HTTP ten loads hold all its threads (server 24.10)."""

    async def is_live(self) -> bool: ...

    async def index(self) -> list[ModelVersion]:
        """Every model directory Triton sees, with state and reason. Raises UpstreamUnavailable, UpstreamFailed."""

    async def load(self, name: str, *, override: ModelOverride | None = None, timeout_s: float) -> None:
        """Return when the model is ready. Raises ModelLoadFailed, DeadlineExceeded, UpstreamUnavailable."""

    async def unload(self, name: str, *, unload_dependents: bool = False, timeout_s: float) -> None:
        """Return when Triton has accepted it; in-flight requests finish first. Raises as `load`."""

    async def loaded_config(self, name: str) -> LoadedConfig:
        """Of a model that is ready, as Triton has it. Raises UpstreamFailed (none is), UpstreamUnavailable."""

    async def server_version(self) -> str:
        """Raises UpstreamUnavailable."""

    async def is_decoupled(self, name: str) -> bool:
        """Whether a model answers a request any number of times. Raises UpstreamFailed (there is none), UpstreamUnavailable."""

    async def memory_bytes(self) -> dict[str, int]:
        """Resident bytes by model, for the backends that report them."""


class Upstream(Protocol):
    """One connected Triton."""

    @property
    def endpoints(self) -> Endpoints:
        """Where it listens, for other processes to connect to it too."""

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


Connect = Callable[[Endpoints], Upstream]


class TritonProcess(Protocol):
    """One life of an embedded Triton."""

    @property
    def endpoints(self) -> Endpoints: ...

    async def wait(self) -> str:
        """Return when it has ended: how, a semicolon, and the tail of its log."""

    def resident_bytes(self) -> int | None:
        """What it and all it started hold in main memory now, shared pages in parts; None where nobody can say. Reads files."""

    async def stop(self, *, grace_s: float) -> None:
        """End it and everything it started, in `grace_s` at most; return when all is gone. Idempotent."""


class TritonLauncher(Protocol):
    """Starts embedded Tritons."""

    async def start(self) -> TritonProcess:
        """Start one; it need not be live yet. Raises StartupError when it cannot be started at all."""
