from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from control_plane.codec.http_message import HttpAnswer, HttpRequest, make_answer
from control_plane.domain.errors import ControlPlaneError, ModelLoadFailed, UpstreamUnavailable
from control_plane.domain.model import ModelState, ModelVersion
from control_plane.ports import GrpcAnswer, GrpcCall


@dataclass
class Calls:
    """What a fake endpoint has been asked, and whether its answers are held back."""

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
        """Answer nothing until `may_answer` is set."""
        self.may_answer.clear()

    async def take(self, request: object, timeout_s: float) -> None:
        self.arrivals.put_nowait(request)
        self.timeouts_s.append(timeout_s)
        self.in_progress += 1
        try:
            await asyncio.sleep(0)  # an answer never comes within the loop's same turn
            await self.may_answer.wait()
            self.answered += 1
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.in_progress -= 1


def echo(request: HttpRequest) -> HttpAnswer:
    """The default answer: a 200 with the request's body."""
    return make_answer(200, request.body)


@dataclass
class FakeHttp:
    """`ports.HttpUpstream`."""

    answer: Callable[[HttpRequest], HttpAnswer] = echo
    """May raise, too."""
    requests: list[HttpRequest] = field(default_factory=list)
    calls: Calls = field(default_factory=Calls)

    async def send(self, request: HttpRequest, *, timeout_s: float) -> HttpAnswer:
        self.requests.append(request)
        await self.calls.take(request, timeout_s)
        return self.answer(request)

    async def close(self) -> None: ...


@dataclass
class FakeGrpc:
    """`ports.GrpcUpstream`."""

    answer: Callable[[GrpcCall], GrpcAnswer] = lambda call: GrpcAnswer(call.message, 0, "")
    requests: list[GrpcCall] = field(default_factory=list)
    calls: Calls = field(default_factory=Calls)

    async def unary(self, call: GrpcCall, *, timeout_s: float) -> GrpcAnswer:
        self.requests.append(call)
        await self.calls.take(call, timeout_s)
        return self.answer(call)

    async def close(self) -> None: ...


@dataclass
class FakeControl:
    """`ports.ModelControl`: Triton's repository as far as the control plane sees it."""

    states: dict[str, ModelState] = field(default_factory=dict)
    failures: dict[str, ControlPlaneError] = field(default_factory=dict)
    """Raised by the load or unload of that model; under `index`, by the index."""
    memory: dict[str, int] = field(default_factory=dict)
    live: bool = True
    loads: list[str] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    calls: Calls = field(default_factory=Calls)

    async def is_live(self) -> bool:
        return self.live

    async def index(self) -> list[ModelVersion]:
        if not self.live:
            raise UpstreamUnavailable("connection refused")
        if "index" in self.failures:
            raise self.failures["index"]
        return [ModelVersion(name, "1", state, "") for name, state in self.states.items()]

    async def load(self, name: str, *, timeout_s: float) -> None:
        self.loads.append(name)
        await self.calls.take(name, timeout_s)
        if name in self.failures:
            raise self.failures[name]
        self.states[name] = ModelState.READY

    async def unload(self, name: str, *, timeout_s: float) -> None:
        self.unloads.append(name)
        await self.calls.take(name, timeout_s)
        if name in self.failures:
            raise self.failures[name]
        if name not in self.states:
            raise ModelLoadFailed(f"{name} is not loaded")
        self.states[name] = ModelState.UNAVAILABLE

    async def memory_bytes(self) -> dict[str, int]:
        return self.memory


@dataclass
class FakeUpstream:
    """`ports.Upstream`: one connected Triton."""

    http: FakeHttp = field(default_factory=FakeHttp)
    grpc: FakeGrpc = field(default_factory=FakeGrpc)
    control: FakeControl = field(default_factory=FakeControl)
    metrics: bytes | ControlPlaneError = b""
    closed: bool = False

    async def metrics_text(self) -> bytes:
        if isinstance(self.metrics, ControlPlaneError):
            raise self.metrics
        return self.metrics

    async def close(self) -> None:
        self.closed = True
