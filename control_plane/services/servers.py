"""Which Tritons requests can go to, as supervisors and attachments report them; asked for by every request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from control_plane.domain.errors import UpstreamUnavailable
from control_plane.domain.inference import InferCall
from control_plane.domain.model import ModelState
from control_plane.ports import Upstream

AnswerT = TypeVar("AnswerT")
AnswerT_co = TypeVar("AnswerT_co", covariant=True)

ONLY = "triton"
"""The server's name where there is one."""


class Follower(Protocol):
    """Who is told of every change: workers, which have connections of their own, and what is known of what is loaded."""

    def up(self, upstream: Upstream, server: str) -> None: ...

    def down(self, reason: str, server: str) -> None: ...


class Place(Protocol):
    """One server's, for who watches over it: `Member`, and `Servers` where there is one."""

    def up(self, upstream: Upstream) -> None: ...

    def down(self, reason: str) -> None: ...


class Member:
    """One server: up with a connection, or down for a reason."""

    def __init__(self, name: str, changed: asyncio.Event, follower: Follower | None) -> None:
        self.name = name
        self.has_been_up = False
        self._upstream: Upstream | None = None
        self._reason = "Triton is starting"
        self._changed = changed
        self.follower = follower

    @property
    def is_up(self) -> bool:
        return self._upstream is not None

    def up(self, upstream: Upstream) -> None:
        self._upstream, self.has_been_up = upstream, True
        self._changed.set()
        if self.follower is not None:
            self.follower.up(upstream, self.name)

    def down(self, reason: str) -> None:
        self._upstream, self._reason = None, reason
        if self.follower is not None:
            self.follower.down(reason, self.name)

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


class Servers:
    """All of them, by name."""

    def __init__(self, follower: Follower | None = None, names: tuple[str, ...] = (ONLY,)) -> None:
        self._changed = asyncio.Event()
        self._members = {name: Member(name, self._changed, follower) for name in names}
        self._first = self._members[names[0]]

    def up(self, upstream: Upstream) -> None:
        """The first, for who has one only; so `down`."""
        self._first.up(upstream)

    def down(self, reason: str) -> None:
        self._first.down(reason)

    def follow(self, follower: Follower) -> None:
        """Tell this one of every change from now on, instead of another."""
        for member in self._members.values():
            member.follower = follower

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
        """Return when one is up and each has been."""
        while not (self.is_up and all(member.has_been_up for member in self._members.values())):
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


class OneServer:
    """`services.inference.Dispatch` where there is nothing to choose: all that is loaded is on one server."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    def send(self, request: Sendable[AnswerT], call: InferCall, *, timeout_s: float) -> Awaitable[AnswerT]:
        return request.send(self._servers.pick(), timeout_s=timeout_s)

    def stream(self, request: Streamable[AnswerT], call: InferCall, *, timeout_s: float) -> Awaitable[AnswerT]:
        return request.stream(self._servers.pick(), timeout_s=timeout_s)

    @asynccontextmanager
    async def server_for(self, call: InferCall, *, timeout_s: float) -> AsyncIterator[Upstream]:
        yield self._servers.pick()

    async def reading(self, model: str, *, timeout_s: float) -> Upstream:
        return self._servers.pick()

    async def ready(self) -> set[str]:
        index = await self._servers.pick().control.index()
        return {line.name for line in index if line.state is ModelState.READY}
