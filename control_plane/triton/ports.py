"""Ports to Triton: the upstream client (inference, model control, metrics) and the launcher of embedded
Tritons.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from control_plane.core.endpoints import Endpoints
from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.fingerprint import LoadedConfig
from control_plane.core.held_memory import HeldMemory
from control_plane.core.model import ModelOverride, ModelVersion
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.protocols.grpc import GrpcAnswer, GrpcHead, MessageFrame
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.protocols.http2.headers import Fields
from control_plane.triton.compute_time import ComputeTime

CANCEL_AFTER_S = 0.05
"""Delay of a cancellation over gRPC after the caller has left. Triton 24.10 can crash when a cancellation meets the
response (a race that was fixed in 25.04): a call that is about to be answered is left alone, and one that
takes longer is worth cancelling.
"""


@dataclass(slots=True)
class GrpcCall:
    """Unary gRPC call as it came in: its head, and its one message as a length-prefixed frame.

    Never modified, but not a frozen dataclass, which takes longer to make.
    """

    head: GrpcHead
    frame: MessageFrame
    principal: Principal = ANONYMOUS
    block: bytes = b""
    """The header block as it came, where the call came whole and the block means the same on any connection;
    else empty."""
    most_answer_bytes: int = 0
    """Most bytes of its answer, where it has a bound of its own: RESOURCE_EXHAUSTED is the answer in place of more."""
    waited_s: float = 0.0
    """Seconds of its timeout that were over before it was read."""


class Slot(Protocol):
    """Slot of an inference request in its model's concurrency limit; `admission/permit.Permit` implements
    it.

    A request with a slot whose caller leaves is waited for in the background, with the slot kept, until
    Triton has ended it: neither a closed connection nor, as a rule, a cancellation stops the computing
    (server 24.10).
    """

    @property
    def expected_s(self) -> float:
        """Estimated seconds from when the request was sent until Triton ends it, behind all that it had
        before; 0 if nothing is known."""

    @property
    def is_superfluous(self) -> bool:
        """Whether another server has answered the request: over gRPC it is then cancelled at once, that is after
        `CANCEL_AFTER_S`, since models that ask whether they are cancelled may save much."""

    @property
    def tells_time_left(self) -> bool:
        """Whether Triton is told how much time the request has left, since its model wants to know."""

    def keep(self) -> None:
        """Keep the slot for a request that Triton goes on computing though its caller has left."""

    def let_go(self) -> None:
        """End one `keep`: Triton has ended the request, or nobody waits for that any longer."""


class HttpStream(Protocol):
    """Response that is received piece by piece, such as a chunked one of Triton; it must be closed in any case."""

    @property
    def status(self) -> int: ...

    @property
    def head(self) -> bytes:
        """Response head as it came, with `Transfer-Encoding: chunked`, or with the length of all pieces."""

    async def receive(self) -> bytes | None:
        """Return the next piece, None at the end. Raises UpstreamUnavailable (the connection broke),
        DeadlineExceeded.
        """

    def close(self) -> None:
        """Release the connection, which is dropped unless the response is at its end. Idempotent."""


class ModelStream(HttpStream, Protocol):
    """Response of a model that is received piece by piece."""

    @property
    def heard_s(self) -> float:
        """When something of it last came from Triton, in the loop's time."""

    def fail(self, error: UpstreamUnavailable) -> None:
        """End it: `receive` raises this error in place of what has not come."""


class HttpUpstream(Protocol):
    """Client of Triton's HTTP endpoint with a pool of keep-alive connections."""

    async def send(self, request: HttpRequest, *, timeout_s: float, slot: Slot | None = None) -> HttpAnswer:
        """Send a request and return the whole response; a cancellation drops the connection, unless the
        request has a `slot`.

        Raises UpstreamUnavailable (there is no connection, or it broke), DeadlineExceeded.
        """

    async def stream(self, request: HttpRequest, *, timeout_s: float, slot: Slot | None = None) -> HttpAnswer | ModelStream:
        """Send a request whose response may be chunked; otherwise as `send`. `timeout_s` then bounds the wait
        for each piece.
        """

    async def close(self) -> None: ...


class GrpcStream(Protocol):
    """Bidirectional streaming call to Triton; one for each caller's stream, never shared."""

    @property
    def headers(self) -> Fields:
        """Triton's response headers; empty until its first message, and where it sent none."""

    @property
    def trailers(self) -> Fields:
        """Trailers with the status of the call, once `receive` has returned None."""

    @property
    def heard_s(self) -> float:
        """When something of it last came from Triton, in the loop's time; before that, minus infinity."""

    @property
    def is_broken_off(self) -> bool:
        """Whether it has ended with its connection, or was reset: its `trailers` are not Triton's then."""

    async def send(self, frame: MessageFrame) -> None:
        """Send one message; returns when flow control has room for the next."""

    def half_close(self) -> None:
        """Tell Triton that no more messages follow."""

    async def receive(self) -> MessageFrame | None:
        """Return the next message, None at the end."""

    def take(self) -> MessageFrame | None:
        """Return the next message if it has come already; else None."""

    def cancel(self) -> None:
        """Cancel the call, at Triton too. Idempotent."""


class GrpcUpstream(Protocol):
    """Client of Triton's gRPC endpoint."""

    async def unary(self, call: GrpcCall, *, timeout_s: float, slot: Slot | None = None) -> GrpcAnswer:
        """Make a unary call. Every status is in the answer, that of a broken connection too; a cancellation
        cancels the call, that of an inference (with a `slot`) only if it goes on for a while.
        """

    async def open_stream(self, head: GrpcHead, *, timeout_s: float) -> GrpcStream:
        """Open a bidirectional streaming call. Raises UpstreamUnavailable: there is no connection within
        `timeout_s`.
        """

    async def close(self) -> None: ...


class ModelStatisticsSource(Protocol):
    """Source of Triton's model statistics."""

    async def compute_times(self) -> dict[str, ComputeTime]:
        """Return the compute times by model, over all versions; only models with batch statistics have them.

        Raises UpstreamUnavailable, UpstreamFailed.
        """


class ModelControl(ModelStatisticsSource, Protocol):
    """Client of Triton's model repository API, over gRPC only: over HTTP ten loads hold all its threads
    (server 24.10).
    """

    async def is_live(self) -> bool: ...

    async def index(self) -> list[ModelVersion]:
        """Return every model directory that Triton sees, with state and reason. Raises UpstreamUnavailable,
        UpstreamFailed.
        """

    async def load(self, name: str, *, override: ModelOverride | None = None, timeout_s: float) -> None:
        """Load a model and return when it is ready. Raises ModelLoadFailed, DeadlineExceeded,
        UpstreamUnavailable.
        """

    async def unload(self, name: str, *, unload_dependents: bool = False, timeout_s: float) -> None:
        """Unload a model and return when Triton has accepted it; in-flight requests finish first. Raises what
        `load` raises.
        """

    async def loaded_config(self, name: str) -> LoadedConfig:
        """Return the configuration of a ready model as Triton has it. Raises UpstreamFailed (it is not
        ready), UpstreamUnavailable.
        """

    async def server_version(self) -> str:
        """Return the version of the server. Raises UpstreamUnavailable, UpstreamFailed."""

    async def is_decoupled(self, name: str) -> bool:
        """Whether a model is decoupled: it may send any number of responses to a request. Raises as
        `loaded_config`.
        """

    async def memory_bytes(self) -> dict[str, int]:
        """Return the resident bytes by model, for backends that report them. Raises UpstreamUnavailable,
        UpstreamFailed.
        """


class Liveness(IntEnum):
    """Answer of a Triton to a liveness probe; the best answer comes first."""

    LIVE = 0
    NOT_LIVE = 1
    """It says that it is not live, or there is nobody at its address."""
    SILENT = 2
    """It says nothing: it, its machine or the way to it is frozen, or all too slow."""


class LivenessProbe(Protocol):
    """Liveness probe of one Triton, over connections that carry nothing else."""

    async def ask(self, *, timeout_s: float) -> Liveness:
        """Ask whether Triton is live; return as soon as it answers, at the latest after `timeout_s`."""


class Upstream(Protocol):
    """Client of one Triton, with all its endpoints."""

    @property
    def endpoints(self) -> Endpoints:
        """Addresses of the endpoints, for other processes to connect to."""

    @property
    def http(self) -> HttpUpstream: ...

    @property
    def grpc(self) -> GrpcUpstream: ...

    @property
    def control(self) -> ModelControl: ...

    @property
    def liveness(self) -> LivenessProbe: ...

    async def is_serving(self) -> bool:
        """Whether Triton says over both HTTP and gRPC that it is live. It opens HTTP after gRPC, by up to half a second (server
        24.10)."""

    async def metrics_text(self) -> bytes:
        """Return Triton's own Prometheus page; empty where there is none. Raises UpstreamUnavailable."""

    async def close(self) -> None:
        """Close every pooled connection: one idle keep-alive connection holds up Triton's exit (server
        24.10).
        """


class RegionUpstream(Protocol):
    """Client of another region's gateway, which speaks Triton's protocol."""

    @property
    def http(self) -> HttpUpstream: ...

    @property
    def grpc(self) -> GrpcUpstream: ...

    def head_for(self, head: GrpcHead) -> GrpcHead:
        """Return the head of a call with what gateways read of it, its caller's credentials among it."""


Connect = Callable[[Endpoints], Upstream]


class TritonProcess(Protocol):
    """Process of an embedded Triton, from its start to its end."""

    @property
    def endpoints(self) -> Endpoints: ...

    async def wait(self) -> str:
        """Wait for the end of the process; return how it ended, a semicolon, and the tail of its log."""

    def held_memory(self) -> HeldMemory | None:
        """Return the memory of Triton and all it started; None if unknown. Reads files."""

    def work_done(self) -> int | None:
        """Return a number that changes whenever Triton, or anything it started, has done something; None if unknown. Reads files."""

    async def stop(self, *, grace_s: float) -> None:
        """End Triton and everything it started, within `grace_s`; return when all is gone. Idempotent."""


class TritonLauncher(Protocol):
    """Launcher of embedded Tritons, or of the connection to one that others start."""

    @property
    def again(self) -> str:
        """What happens to a Triton that has ended, after `is being`: `restarted`."""

    async def start(self) -> TritonProcess:
        """Start a Triton, which need not be live when this returns. Raises StartupError: it cannot be started
        at all.
        """
