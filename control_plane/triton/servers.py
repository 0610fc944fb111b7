"""Registry of the servers that requests can go to, as supervisors and attachments report them; read by every
request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol, TypeVar

from control_plane.core.endpoints import ONLY
from control_plane.core.errors import GatewayStopping, UpstreamUnavailable
from control_plane.core.infer_call import InferCall
from control_plane.core.model import ModelState
from control_plane.triton.ports import Upstream

AnswerT = TypeVar("AnswerT")
AnswerT_co = TypeVar("AnswerT_co", covariant=True)

_MOMENT_S = 2.0
"""Time that servers which need not be up are waited for at start: if they come up, it is known what they have
loaded before anything is loaded a second time elsewhere.
"""


class ServerObserver(Protocol):
    """Observer of the servers' states, such as worker processes, which have connections of their own, and the
    fingerprints.
    """

    def up(self, upstream: Upstream, server: str) -> None: ...

    def down(self, reason: str, server: str) -> None: ...

    def left(self, server: str) -> None:
        """The server has left the fleet; one that joins later under its name is another."""


class ServerSlot(Protocol):
    """Slot of one server in the registry, for the supervisor or attachment that reports its state.

    It is a `ServerState`, or `Servers` itself where there is only one server.
    """

    def up(self, upstream: Upstream) -> None: ...

    def down(self, reason: str) -> None: ...

    def lost(self, reason: str) -> None:
        """Report that the server is down unexpectedly."""


class ServerState:
    """State of one server: up with an upstream, or down for a reason."""

    def __init__(self, name: str, changed: asyncio.Event, followers: Sequence[ServerObserver], *, is_needed: bool = True) -> None:
        """The gateway's start does not wait for a server that is not needed."""
        self.name = name
        self.is_needed = is_needed
        self.has_been_up = False
        self.is_lost = False
        """Whether the server is down unexpectedly."""
        self.losses = 0
        """How often the server has been lost."""
        self._upstream: Upstream | None = None
        self._reason = "Triton is starting"
        self._changed = changed
        self._followers = followers

    @property
    def is_up(self) -> bool:
        return self._upstream is not None

    def up(self, upstream: Upstream) -> None:
        self._upstream, self.has_been_up, self.is_lost = upstream, True, False
        self._changed.set()
        for follower in self._followers:
            follower.up(upstream, self.name)

    def down(self, reason: str) -> None:
        self._upstream, self._reason = None, reason
        for follower in self._followers:
            follower.down(reason, self.name)

    def lost(self, reason: str) -> None:
        self.losses, self.is_lost = self.losses + 1, True
        self.down(reason)

    def pick(self) -> Upstream:
        """Return the server's upstream. Raises UpstreamUnavailable with the reason while it is down."""
        if self._upstream is None:
            raise UpstreamUnavailable(f"{self._reason}; try again shortly")
        return self._upstream


class Sendable(Protocol[AnswerT_co]):
    """Request with a whole response, to be sent to a server that is still to be chosen."""

    def send(self, server: Upstream, *, timeout_s: float) -> Awaitable[AnswerT_co]: ...


class Streamable(Protocol[AnswerT_co]):
    """Request whose response may come in pieces."""

    def stream(self, server: Upstream, *, timeout_s: float) -> Awaitable[AnswerT_co]: ...


class Sent(Protocol):
    """Part of `inference/running_request.AuthorizedRequest` that is told which server a request was sent to; it
    is charged from then on.
    """

    def sent(self, server: str) -> None: ...


class Servers:
    """Registry of all servers by name; servers may join and leave."""

    def __init__(self, follower: ServerObserver | None = None, names: tuple[str, ...] = (ONLY,)) -> None:
        self.is_stopping = False
        """Whether the gateway has been told to stop: its readiness says no, while requests are still served."""
        self._changed = asyncio.Event()
        self._followers = [] if follower is None else [follower]
        self._nobody = self._first = ServerState("", self._changed, ())
        self._nobody.down("no server has joined the fleet yet")
        self._members: dict[str, ServerState] = {}
        self._losses_of_gone = 0
        for name in names:
            self.add(name)

    def add(self, name: str, *, is_needed: bool = True) -> ServerState:
        """Add a server, which is not up yet; `wait_until_up` waits for it if it is needed."""
        member = self._members[name] = ServerState(name, self._changed, self._followers, is_needed=is_needed)
        self._first = next(iter(self._members.values()))
        return member

    def remove(self, name: str) -> None:
        """Remove a server that has left and is down."""
        self._losses_of_gone += self._members.pop(name).losses
        self._first = next(iter(self._members.values()), self._nobody)
        for follower in self._followers:
            follower.left(name)

    def up(self, upstream: Upstream) -> None:
        """Report the first server as up, where there is only one; so do `down` and `lost`."""
        self._first.up(upstream)

    def down(self, reason: str) -> None:
        self._first.down(reason)

    def lost(self, reason: str) -> None:
        self._first.lost(reason)

    @property
    def losses(self) -> int:
        """How often servers have been lost, those that have left included."""
        return self._losses_of_gone + sum(member.losses for member in self._members.values())

    def follow(self, follower: ServerObserver) -> None:
        """Notify one more observer of every change from now on."""
        self._followers.append(follower)

    @property
    def members(self) -> Mapping[str, ServerState]:
        return self._members

    @property
    def is_up(self) -> bool:
        """Whether any server is up."""
        return any(member.is_up for member in self._members.values())

    @property
    def live(self) -> dict[str, Upstream]:
        """Upstreams of the servers that are up, by name."""
        return {name: member.pick() for name, member in self._members.items() if member.is_up}

    async def wait_until_up(self) -> None:
        """Wait until one server is up and every needed one has been; then at most a moment more for the
        others.
        """
        await self._until(lambda: self.is_up and all(member.has_been_up or not member.is_needed for member in self._members.values()))
        with suppress(TimeoutError):
            async with asyncio.timeout(_MOMENT_S):
                await self._until(lambda: all(member.has_been_up for member in self._members.values()))

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._changed.clear()
            await self._changed.wait()

    def get(self, server: str) -> Upstream:
        """Return the upstream of a server. Raises UpstreamUnavailable."""
        return self._members[server].pick()

    def pick(self) -> Upstream:
        """Return the upstream of any server, for a call that all answer alike. Raises UpstreamUnavailable
        with a reason: none is up.
        """
        # The first server answers as a rule: a single server pays for no search.
        if not self._first.is_up:
            for member in self._members.values():
                if member.is_up:
                    return member.pick()
        return self._first.pick()

    def require_ready(self) -> None:
        """Raise GatewayStopping or UpstreamUnavailable where load balancers should send no requests here."""
        if self.is_stopping:
            raise GatewayStopping
        self.pick()

    async def ask(self, ask: Callable[[Upstream], Awaitable[AnswerT]]) -> AnswerT:
        """Ask servers in turn, until one answers, for something that all answer alike.

        A server that has just gone still counts as up for a moment, so one alone would not do. Raises
        UpstreamUnavailable with a reason.
        """
        *others, last = list(self.live.values()) or [self.pick()]
        for upstream in others:
            with suppress(UpstreamUnavailable):
                return await ask(upstream)
        return await ask(last)


class SingleServerDispatch:
    """Implementation of `inference/inference.Dispatch` for a single server, where there is nothing to
    choose.
    """

    catalogue = None
    """A fleet's merged view of its servers; a single server answers such calls itself."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    def send(self, request: Sendable[AnswerT], call: InferCall, *, timeout_s: float, running: Sent | None = None) -> Awaitable[AnswerT]:
        return request.send(self._server(running), timeout_s=timeout_s)

    def stream(self, request: Streamable[AnswerT], call: InferCall, *, timeout_s: float, running: Sent | None = None) -> Awaitable[AnswerT]:
        return request.stream(self._server(running), timeout_s=timeout_s)

    @asynccontextmanager
    async def server_for(self, call: InferCall, *, timeout_s: float, running: Sent | None = None) -> AsyncIterator[Upstream]:
        yield self._server(running)

    def _server(self, running: Sent | None) -> Upstream:
        if running is not None:
            running.sent(ONLY)
        return self._servers.pick()

    async def reading(self, model: str, *, timeout_s: float) -> Upstream:
        return self._servers.pick()

    async def ready(self) -> set[str]:
        index = await self._servers.pick().control.index()
        return {line.name for line in index if line.state is ModelState.READY}
