"""Registry of the servers that requests can go to, as supervisors and attachments report them; read by every
request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from control_plane.concurrency.broadcast import Broadcast
from control_plane.core.endpoints import ONLY
from control_plane.core.errors import GatewayStopping, UpstreamUnavailable
from control_plane.triton.ports import Upstream
from control_plane.triton.server_state import ServerObserver, ServerState
from control_plane.triton.silence_watch import TellSuspect
from control_plane.triton.under_repair import ModelsUnderRepair

AnswerT = TypeVar("AnswerT")

NOTICED_S = 1.0
"""Time within which the end of a Triton is noticed by whoever watches its process."""
_MOMENT_S = 2.0
"""Time that servers which need not be up are waited for at start: if they come up, it is known what they have
loaded before anything is loaded a second time elsewhere.
"""


class Servers:
    """Registry of all servers by name; servers may join and leave."""

    def __init__(self, follower: ServerObserver | None = None, names: tuple[str, ...] = (ONLY,)) -> None:
        self.is_stopping = False
        """Whether the gateway has been told to stop: its readiness says no, while requests are still served."""
        self.under_repair = ModelsUnderRepair()
        """Models that requests wait for where there is only one server."""
        self.suspect: TellSuspect | None = None
        """Told of a model of the only server that seems to hang; None where nothing could be done about it."""
        self._changed = Broadcast()
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

    def fell_silent(self) -> None:
        self._first.fell_silent()

    def heard(self) -> None:
        self._first.heard()

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
    def is_answering(self) -> bool:
        """Whether any server is up and not silent."""
        return any(member.is_answering for member in self._members.values())

    @property
    def live(self) -> dict[str, Upstream]:
        """Upstreams of the servers that are up, by name; silent ones are among them."""
        return {name: member.pick() for name, member in self._members.items() if member.is_up}

    @property
    def answering(self) -> dict[str, ServerState]:
        """The servers that are up and not silent, by name."""
        return {name: member for name, member in self._members.items() if member.is_answering}

    def to_ask(self) -> list[ServerState]:
        """Return the servers that are up and not silent, at least one. Raises UpstreamUnavailable: there is
        none.
        """
        self.pick()
        if not (found := list(self.answering.values())):
            raise UpstreamUnavailable("every Triton that is up says nothing; try again shortly")
        return found

    async def wait_until_up(self) -> None:
        """Wait until one server is up and every needed one has been; then at most a moment more for the
        others.
        """
        await self._until(lambda: self.is_up and all(member.has_been_up or not member.is_needed for member in self._members.values()))
        with suppress(TimeoutError):
            async with asyncio.timeout(_MOMENT_S):
                await self._until(lambda: all(member.has_been_up for member in self._members.values()))

    async def goes_down(self, upstream: Upstream, *, within_s: float) -> bool:
        """Wait until the server that `upstream` reached is seen to be down; False where that takes too long."""
        return await self._within(within_s, lambda: upstream not in self.live.values())

    async def comes_up(self, *, within_s: float) -> bool:
        """Wait until any server is up; False where that takes too long."""
        return await self._within(within_s, lambda: self.is_up)

    async def _within(self, timeout_s: float, is_so: Callable[[], bool]) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._until(is_so)
                return True
        return False

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self._changed.wait()

    def get(self, server: str) -> Upstream:
        """Return the upstream of a server. Raises UpstreamUnavailable."""
        return self._members[server].pick()

    def pick(self) -> Upstream:
        """Return the upstream of any server, of a silent one only if there is no other, for a call that all
        answer alike. Raises UpstreamUnavailable with a reason: none is up.
        """
        # The first server answers as a rule: a single server pays for no search.
        first = self._first
        if first.upstream is not None and not first.is_silent:
            return first.upstream
        up = [member for member in self._members.values() if member.is_up]
        return min(up, key=lambda member: member.is_silent, default=first).pick()

    def require_ready(self) -> None:
        """Raise GatewayStopping or UpstreamUnavailable where load balancers should send no requests here."""
        if self.is_stopping:
            raise GatewayStopping
        self.to_ask()

    async def ask(self, ask: Callable[[Upstream], Awaitable[AnswerT]]) -> AnswerT:
        """Ask servers in turn, until one answers, for something that all answer alike.

        A server that has just gone or is frozen still counts as up for a moment, so one alone would not do.
        Raises UpstreamUnavailable with a reason.
        """
        *others, last = self.to_ask()
        for member in others:
            with suppress(UpstreamUnavailable):
                return await member.ask(ask)
        return await last.ask(ask)
