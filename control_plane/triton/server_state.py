"""State of one server, as its supervisor or attachment reports it, and the ports of both to it.

`triton/servers` has one for each server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from control_plane.concurrency.broadcast import Broadcast
from control_plane.core.errors import UpstreamUnavailable
from control_plane.triton.ports import Upstream

AnswerT = TypeVar("AnswerT")

_MOST_S = 30.0
"""Longest time after which callers are told to come again."""


class ServerObserver(Protocol):
    """Observer of the servers' states, such as worker processes, which have connections of their own, and the
    fingerprints.
    """

    def up(self, upstream: Upstream, server: str) -> None: ...

    def down(self, reason: str, server: str) -> None: ...

    def silence_changed(self, is_silent: bool, server: str) -> None:
        """A server that is up says nothing any more, or answers again. One that goes down is not silent."""

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

    def fell_silent(self) -> None:
        """Report that the server says nothing, though nobody knows it to be down."""

    def heard(self) -> None:
        """Report that the server answers again."""


class ServerState:
    """State of one server: up with an upstream, or down for a reason."""

    def __init__(
        self,
        name: str,
        changed: Broadcast,
        followers: Sequence[ServerObserver],
        *,
        is_needed: bool = True,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """The gateway's start does not wait for a server that is not needed. `now_s` is the loop's time."""
        self.name = name
        self.is_needed = is_needed
        self.has_been_up = False
        self.is_lost = False
        """Whether the server is down unexpectedly."""
        self.losses = 0
        """How often the server has been lost."""
        self.is_silent = False
        """Whether the server is up and says nothing (`triton/liveness_watch`)."""
        self._asking: set[asyncio.Timeout] = set()
        """Deadlines of those that are asking the server (`ask`), which are over when it falls silent."""
        self.upstream: Upstream | None = None
        """The client of the server; None while it is down."""
        self._reason = "Triton is starting"
        self._now_s = now_s
        self._down_s = now_s()
        """When the server went down last, or since when it has been starting."""
        self._took_s = 0.0
        """Seconds that it was down the last time."""
        self._changed = changed
        self._followers = followers

    @property
    def is_up(self) -> bool:
        return self.upstream is not None

    @property
    def is_answering(self) -> bool:
        """Whether the server is up and not silent."""
        return self.upstream is not None and not self.is_silent

    def up(self, upstream: Upstream) -> None:
        if self.upstream is None:
            self._took_s = self._now_s() - self._down_s
        self.upstream, self.has_been_up, self.is_lost, self.is_silent = upstream, True, False, False
        self._changed.wake()
        for follower in self._followers:
            follower.up(upstream, self.name)

    def down(self, reason: str) -> None:
        if self.upstream is not None:
            self._down_s = self._now_s()
        self.upstream, self._reason, self.is_silent = None, reason, False
        self._changed.wake()
        for follower in self._followers:
            follower.down(reason, self.name)

    def lost(self, reason: str) -> None:
        self.losses, self.is_lost = self.losses + 1, True
        self.down(reason)

    def fell_silent(self) -> None:
        if self.is_answering:
            self._change_silence(is_silent=True)
            for asking in self._asking:
                asking.reschedule(asyncio.get_running_loop().time())
            self._asking.clear()

    def heard(self) -> None:
        if self.is_silent:
            self._change_silence(is_silent=False)

    def _change_silence(self, *, is_silent: bool) -> None:
        self.is_silent = is_silent
        for follower in self._followers:
            follower.silence_changed(is_silent, self.name)

    def pick(self) -> Upstream:
        """Return the server's upstream. Raises UpstreamUnavailable with the reason while it is down."""
        if self.upstream is None:
            raise UpstreamUnavailable(f"{self._reason}; try again shortly", retry_after_s=self._up_in_s())
        return self.upstream

    def _up_in_s(self) -> float:
        """In how many seconds the server should be up: after as long as the last time; one that is down for longer, as its restarts
        come more and more seldom, for as long again."""
        down_s = self._now_s() - self._down_s
        return self._took_s - down_s if down_s < self._took_s else min(down_s, _MOST_S)

    async def ask(self, ask: Callable[[Upstream], Awaitable[AnswerT]]) -> AnswerT:
        """Ask the server something that must not wait for one that is frozen. Raises UpstreamUnavailable: it is
        down, or says nothing, or falls silent before it has answered.
        """
        upstream = self.pick()
        if self.is_silent:
            raise self._silent()
        asking = asyncio.timeout(None)
        try:
            async with asking:
                self._asking.add(asking)
                try:
                    return await ask(upstream)
                finally:
                    self._asking.discard(asking)
        except TimeoutError:
            if not asking.expired():
                raise
            raise self._silent() from None

    def _silent(self) -> UpstreamUnavailable:
        return UpstreamUnavailable(f"Triton {f'{self.name} ' if self.name else ''}says nothing; try again shortly")
