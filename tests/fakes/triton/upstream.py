from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from control_plane.concurrency.broadcast import Broadcast
from control_plane.core.endpoints import TritonEndpoints
from control_plane.core.errors import ControlPlaneError, UpstreamFailed, UpstreamUnavailable
from control_plane.core.fingerprint import LoadedConfig
from control_plane.core.model import ModelOverride, ModelState, ModelVersion
from control_plane.protocols.grpc import HEAD, PREFIX_BYTES, GrpcAnswer, GrpcHead, frame_message, message_answer, status_fields
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.protocols.http2.headers import Fields
from control_plane.triton.compute_time import ComputeTime
from control_plane.triton.ports import GrpcCall, Liveness, Slot
from control_plane.triton.server_state import ServerState


@dataclass
class Calls:
    """Calls to a fake endpoint, which can be told to hold its answers back."""

    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    arrivals: asyncio.Queue[object] = field(default_factory=asyncio.Queue)
    """Each request as it arrives, for a test to wait for."""
    timeouts_s: list[float] = field(default_factory=list)
    answered: int = 0
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    in_progress: int = 0

    def __post_init__(self) -> None:
        self.may_answer.set()

    def hold(self) -> None:
        """Hold all answers back until `may_answer` is set."""
        self.may_answer.clear()

    async def take(self, request: object, timeout_s: float) -> None:
        self.arrivals.put_nowait(request)
        self.timeouts_s.append(timeout_s)
        self.in_progress += 1
        try:
            await asyncio.sleep(0)  # no real answer comes within the same turn of the loop
            await self.may_answer.wait()
            self.answered += 1
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.in_progress -= 1


def echo(request: HttpRequest) -> HttpAnswer:
    """Answer 200 with the request's body; the default of `FakeHttp`."""
    return make_answer(200, request.body)


@dataclass
class FakeHttp:
    """`triton/ports.HttpUpstream` that answers by a function and records the requests."""

    answer: Callable[[HttpRequest], HttpAnswer] = echo
    """Makes the answer; it may raise, too."""
    requests: list[HttpRequest] = field(default_factory=list)
    slots: list[Slot | None] = field(default_factory=list)
    """Slots of the `requests`."""
    calls: Calls = field(default_factory=Calls)

    streams: Callable[[HttpRequest], HttpAnswer | FakeHttpStream] | None = None
    """Makes the answer to `stream`; None to answer as `send` does."""
    config: bytes | None = None
    """The answer to each question for a model's configuration, which is not recorded; None to answer it as all else."""

    async def send(self, request: HttpRequest, *, timeout_s: float, slot: Slot | None = None) -> HttpAnswer:
        if self.config is not None and request.method == b"GET" and request.target.endswith(b"/config"):
            return make_answer(200, self.config)
        self.requests.append(request)
        self.slots.append(slot)
        await self.calls.take(request, timeout_s)
        return self.answer(request)

    async def stream(self, request: HttpRequest, *, timeout_s: float, slot: Slot | None = None) -> HttpAnswer | FakeHttpStream:
        answer = await self.send(request, timeout_s=timeout_s)
        return answer if self.streams is None else self.streams(request)

    async def close(self) -> None: ...


@dataclass
class FakeHttpStream:
    """`triton/ports.ModelStream` into which a test puts the pieces: bytes, None for the end, or an error."""

    status: int = 200
    head: bytes = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces: asyncio.Queue[bytes | ControlPlaneError | None] = field(default_factory=asyncio.Queue)
    taken: int = 0
    heard_s: float = -inf
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, *pieces: bytes | ControlPlaneError | None) -> FakeHttpStream:
        for piece in pieces:
            self.pieces.put_nowait(piece)
        return self

    async def receive(self) -> bytes | None:
        piece = await self.pieces.get()
        self.taken += 1
        if isinstance(piece, ControlPlaneError):
            raise piece
        return piece

    def fail(self, error: ControlPlaneError) -> None:
        self.put(error)

    def close(self) -> None:
        self.closed.set()


@dataclass
class FakeGrpc:
    """`triton/ports.GrpcUpstream` that answers by a function and records the calls."""

    answer: Callable[[GrpcCall], GrpcAnswer] = lambda call: message_answer(bytes(call.frame[PREFIX_BYTES:]))
    """Makes the answer, an echo by default; it may raise, too."""
    requests: list[GrpcCall] = field(default_factory=list)
    calls: Calls = field(default_factory=Calls)
    streams: asyncio.Queue[FakeGrpcStream] = field(default_factory=asyncio.Queue)
    """Each stream as it is opened, for a test to act as Triton on it."""
    cannot_open: ControlPlaneError | None = None
    respond: Callable[[bytes], list[bytes]] | None = None
    """Answers each message of a stream, which then ends; None where a test acts as Triton."""

    async def unary(self, call: GrpcCall, *, timeout_s: float, slot: Slot | None = None) -> GrpcAnswer:
        self.requests.append(call)
        await self.calls.take(call, timeout_s)
        return self.answer(call)

    async def open_stream(self, head: GrpcHead, *, timeout_s: float) -> FakeGrpcStream:
        self.calls.timeouts_s.append(timeout_s)
        if self.cannot_open is not None:
            raise self.cannot_open
        stream = FakeGrpcStream(head, respond=self.respond)
        self.streams.put_nowait(stream)
        return stream

    async def close(self) -> None: ...


@dataclass
class FakeGrpcStream:
    """`triton/ports.GrpcStream` whose other end is the test: it takes what was `sent`, puts `answers`, and
    ends the stream."""

    head: GrpcHead
    headers: Fields = HEAD
    trailers: Fields = ()
    sent: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    """Messages without their length prefix; None for the half-close."""
    may_send: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared while flow control leaves no room to send."""
    answers: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    received: int = 0
    heard_s: float = -inf
    is_broken_off: bool = False
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    respond: Callable[[bytes], list[bytes]] | None = None

    def __post_init__(self) -> None:
        self.may_send.set()

    def put(self, *messages: bytes) -> None:
        for message in messages:
            self.answers.put_nowait(frame_message(message))

    def end(self, code: int = 0, details: str = "", *trailing: tuple[bytes, bytes]) -> None:
        self.trailers = (*status_fields(code, details), *trailing)
        self.answers.put_nowait(None)

    async def send(self, frame: bytes | memoryview) -> None:
        await self.may_send.wait()
        self.sent.put_nowait(bytes(frame[PREFIX_BYTES:]))
        if self.respond is not None:
            self.put(*self.respond(bytes(frame[PREFIX_BYTES:])))
            self.end()

    def half_close(self) -> None:
        self.sent.put_nowait(None)

    async def receive(self) -> bytes | None:
        frame = await self.answers.get()
        self.received += 1
        return frame

    def take(self) -> bytes | None:
        if self.answers.empty():
            return None
        frame = self.answers.get_nowait()
        if frame is None:
            self.answers.put_nowait(None)  # the end, which `receive` tells
        else:
            self.received += 1
        return frame

    def cancel(self) -> None:
        self.cancelled.set()
        self.answers.put_nowait(None)


@dataclass
class FakeControl:
    """`triton/ports.ModelControl` over an in-memory repository."""

    states: dict[str, ModelState] = field(default_factory=dict)
    failures: dict[str, ControlPlaneError] = field(default_factory=dict)
    """Errors that the load or unload of a model raises; the error of the index is under `index`."""
    memory: dict[str, int] = field(default_factory=dict)
    live: bool = True
    loads: list[str] = field(default_factory=list)
    overrides: dict[str, ModelOverride | None] = field(default_factory=dict)
    """Model -> the override (configuration and files) of its last load."""
    unloaded_with: dict[str, list[str]] = field(default_factory=dict)
    """Model -> the models that are unloaded with it when dependents are."""
    unloads: list[str] = field(default_factory=list)
    configs: dict[str, LoadedConfig] = field(default_factory=dict)
    """Configurations of READY models; a model without one here has an empty one."""
    on_load: Callable[[str], None] = lambda name: None
    """Called while a model is being loaded."""
    decoupled: dict[str, bool] = field(default_factory=dict)
    kinds_asked: list[str] = field(default_factory=list)
    calls: Calls = field(default_factory=Calls)
    compute: dict[str, ComputeTime] | ControlPlaneError = field(default_factory=dict)
    compute_delay_s: float = 0.0
    polls: int = 0
    """Number of reads of `compute`."""

    async def is_live(self) -> bool:
        return self.live

    async def index(self) -> list[ModelVersion]:
        if not self.live:
            raise UpstreamUnavailable("connection refused")
        if "index" in self.failures:
            raise self.failures["index"]
        return [
            ModelVersion(name, "1", state, "unloaded" if state is ModelState.UNAVAILABLE else "") for name, state in self.states.items()
        ]

    async def load(self, name: str, *, override: ModelOverride | None = None, timeout_s: float) -> None:
        self.loads.append(name)
        self.overrides[name] = override
        await self.calls.take(name, timeout_s)
        self.on_load(name)
        if name in self.failures:
            raise self.failures[name]
        self.states[name] = ModelState.READY

    async def unload(self, name: str, *, unload_dependents: bool = False, timeout_s: float) -> None:
        self.unloads.append(name)
        await self.calls.take(name, timeout_s)
        if name in self.failures:
            raise self.failures[name]
        for each in (name, *(self.unloaded_with.get(name, []) if unload_dependents else [])):
            if each in self.states:  # Triton answers 200 to the unload of an unknown model, too
                self.states[each] = ModelState.UNAVAILABLE

    async def loaded_config(self, name: str) -> LoadedConfig:
        await asyncio.sleep(0)  # other tasks go on meanwhile
        if self.states.get(name) is not ModelState.READY:
            raise UpstreamFailed(f"ModelConfig: {name} is not ready")
        return self.configs.get(name, LoadedConfig(b""))

    async def server_version(self) -> str:
        return "2.51.0"

    async def is_decoupled(self, name: str) -> bool:
        self.kinds_asked.append(name)
        if name not in self.decoupled:
            raise UpstreamFailed(f"ModelConfig: no model {name}")
        return self.decoupled[name]

    async def memory_bytes(self) -> dict[str, int]:
        return self.memory

    async def compute_times(self) -> dict[str, ComputeTime]:
        self.polls += 1
        if self.compute_delay_s:
            await asyncio.sleep(self.compute_delay_s)
        if isinstance(self.compute, ControlPlaneError):
            raise self.compute
        return dict(self.compute)


@dataclass
class FakeLiveness:
    """`triton/ports.LivenessProbe` of a fake Triton, by its `thaw` and `control.live`."""

    triton: FakeUpstream

    async def ask(self, *, timeout_s: float) -> Liveness:
        try:
            async with asyncio.timeout(timeout_s):
                await self.triton.thaw.wait()
        except TimeoutError:
            return Liveness.SILENT
        return Liveness.LIVE if self.triton.control.live else Liveness.NOT_LIVE


@dataclass(eq=False)
class FakeUpstream:
    """`triton/ports.Upstream`: one connected Triton."""

    endpoints: TritonEndpoints = field(default_factory=lambda: TritonEndpoints("127.0.0.1", 1, 2, 3))
    http: FakeHttp = field(default_factory=FakeHttp)
    grpc: FakeGrpc = field(default_factory=FakeGrpc)
    control: FakeControl = field(default_factory=FakeControl)
    metrics: bytes | ControlPlaneError = b""
    closed: bool = False
    serves_http: bool = True
    thaw: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared while the Triton is frozen: it says nothing to a liveness probe."""

    def __post_init__(self) -> None:
        self.thaw.set()

    @property
    def liveness(self) -> FakeLiveness:
        return FakeLiveness(self)

    async def is_serving(self) -> bool:
        return self.control.live and self.serves_http

    async def metrics_text(self) -> bytes:
        if isinstance(self.metrics, ControlPlaneError):
            raise self.metrics
        return self.metrics

    async def close(self) -> None:
        self.closed = True


def server_of(upstream: FakeUpstream) -> ServerState:
    """Return a server that is up with this upstream."""
    server = ServerState("", Broadcast(), ())
    server.up(upstream)
    return server
