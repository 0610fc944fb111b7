"""Which Tritons requests can go to, as supervisors and attachments report them; asked for by every request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol, TypeVar

from control_plane.core.endpoints import ONLY
from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.infer_call import InferCall
from control_plane.core.model import ModelState
from control_plane.triton.ports import Upstream

AnswerT = TypeVar("AnswerT")
AnswerT_co = TypeVar("AnswerT_co", covariant=True)

_MOMENT_S = 2.0
"""For servers that need not be up: what they have loaded should be known before anything is loaded a second time."""


class Follower(Protocol):
    """Who is told of every change: workers, which have connections of their own, and what is known of what is loaded."""

    def up(self, upstream: Upstream, server: str) -> None: ...

    def down(self, reason: str, server: str) -> None: ...

    def left(self, server: str) -> None:
        """It is none of the fleet's any more; one of the same name is another."""


class Place(Protocol):
    """One server's, for who watches over it: `Member`, and `Servers` where there is one."""

    def up(self, upstream: Upstream) -> None: ...

    def down(self, reason: str) -> None: ...

    def lost(self, reason: str) -> None:
        """It is down, and nobody has meant it to be."""


class Member:
    """One server: up with a connection, or down for a reason."""

    def __init__(self, name: str, changed: asyncio.Event, followers: Sequence[Follower], *, is_needed: bool = True) -> None:
        """Nobody waits at the start for one that is not needed."""
        self.name = name
        self.is_needed = is_needed
        self.has_been_up = False
        self.is_lost = False
        """It is down, though nobody has meant it to be."""
        self.losses = 0
        """How often it has been lost."""
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
        """Its connection. Raises UpstreamUnavailable, with the reason, while there is none."""
        if self._upstream is None:
            raise UpstreamUnavailable(f"{self._reason}; try again shortly")
        return self._upstream


class Sendable(Protocol[AnswerT_co]):
    """A request that may be sent to a server."""

    def send(self, server: Upstream, *, timeout_s: float) -> Awaitable[AnswerT_co]: ...


class Streamable(Protocol[AnswerT_co]):
    """One whose answer may come in pieces."""

    def stream(self, server: Upstream, *, timeout_s: float) -> Awaitable[AnswerT_co]: ...


class Sent(Protocol):
    """`inference/running_request.RunningRequest`, as far as it is told where it goes, and that it is charged from then on."""

    def sent(self, server: str) -> None: ...


class Servers:
    """All of them, by name; they may join and leave."""

    def __init__(self, follower: Follower | None = None, names: tuple[str, ...] = (ONLY,)) -> None:
        self._changed = asyncio.Event()
        self._followers = [] if follower is None else [follower]
        self._nobody = self._first = Member("", self._changed, ())
        self._nobody.down("no server has joined the fleet yet")
        self._members: dict[str, Member] = {}
        self._losses_of_gone = 0
        for name in names:
            self.add(name)

    def add(self, name: str, *, is_needed: bool = True) -> Member:
        """It joins, and is not up yet; `wait_until_up` waits for those that are needed."""
        member = self._members[name] = Member(name, self._changed, self._followers, is_needed=is_needed)
        self._first = next(iter(self._members.values()))
        return member

    def remove(self, name: str) -> None:
        """It has left, and is down."""
        self._losses_of_gone += self._members.pop(name).losses
        self._first = next(iter(self._members.values()), self._nobody)
        for follower in self._followers:
            follower.left(name)

    def up(self, upstream: Upstream) -> None:
        """The first, for who has one only; so `down` and `lost`."""
        self._first.up(upstream)

    def down(self, reason: str) -> None:
        self._first.down(reason)

    def lost(self, reason: str) -> None:
        self._first.lost(reason)

    @property
    def losses(self) -> int:
        """How often any has been lost."""
        return self._losses_of_gone + sum(member.losses for member in self._members.values())

    def follow(self, follower: Follower) -> None:
        """Tell this one, too, of every change from now on."""
        self._followers.append(follower)

    @property
    def members(self) -> Mapping[str, Member]:
        return self._members

    @property
    def is_up(self) -> bool:
        """Whether any is."""
        return any(member.is_up for member in self._members.values())

    @property
    def live(self) -> dict[str, Upstream]:
        """Those that are up, by name."""
        return {name: member.pick() for name, member in self._members.items() if member.is_up}

    async def wait_until_up(self) -> None:
        """Return when one is up and each that is needed has been; the others have a moment more."""
        await self._until(lambda: self.is_up and all(member.has_been_up or not member.is_needed for member in self._members.values()))
        with suppress(TimeoutError):
            async with asyncio.timeout(_MOMENT_S):
                await self._until(lambda: all(member.has_been_up for member in self._members.values()))

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._changed.clear()
            await self._changed.wait()

    def of(self, server: str) -> Upstream:
        """Raises UpstreamUnavailable."""
        return self._members[server].pick()

    def pick(self) -> Upstream:
        """Any, for a call that all answer alike. Raises UpstreamUnavailable, with a reason, while there is none."""
        if not self._first.is_up:
            for member in self._members.values():
                if member.is_up:
                    return member.pick()
        return self._first.pick()

    async def ask(self, ask: Callable[[Upstream], Awaitable[AnswerT]]) -> AnswerT:
        """What any answers to a call that all answer alike; one that has just gone, which is noticed a moment later, is passed over.

        Raises UpstreamUnavailable, with a reason: there is none.
        """
        *others, last = list(self.live.values()) or [self.pick()]
        for upstream in others:
            with suppress(UpstreamUnavailable):
                return await ask(upstream)
        return await ask(last)


class OneServer:
    """`inference/inference.Dispatch` where there is nothing to choose: all that is loaded is on one server."""

    catalogue = None
    """What there is to tell of all servers, the one tells."""

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
