"""Keeps this process's part of the fleet's lease: takes it when it may, renews it, and knows when it must not act any more.

`fleet/domain/ownership` says when that is. `fleet/loading/load_plans` asks `require` right before each call. While the store is
away the lease runs out by itself, and so it does while this process is paused: time counts by a clock that goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import assert_never

from control_plane.core.errors import StoreUnavailable, UpstreamUnavailable
from control_plane.fleet.domain.lease import Lease
from control_plane.fleet.domain.ownership import LeaseLimits, Owning, Request, State, Watching, after, at, may_begin, next_request, pause_s
from control_plane.fleet.ports import LeaseStore

_log = logging.getLogger(__name__)


def boot_time_s() -> float:
    """Seconds of a clock that nobody sets, and that goes on while the machine sleeps.

    Not the loop's time: uvloop reads that once per turn, so that after a pause it is of before.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Ownership:
    """Whether this process is the fleet's owner."""

    def __init__(
        self, store: LeaseStore, *, holder: str, limits: LeaseLimits | None = None, now_s: Callable[[], float] = boot_time_s
    ) -> None:
        """`holder` is a name that no other process has, nor this one after a restart."""
        self._store = store
        self._holder = holder
        self._limits = limits or LeaseLimits()
        self._now_s = now_s
        self._state: State = Watching()
        self._became_owner = asyncio.Event()
        self._begun_s = float("-inf")
        self._has_left = False
        self._is_away = False

    @property
    def is_owner(self) -> bool:
        """Whether a call may begin now."""
        return not self._has_left and may_begin(self._state, self._now_s(), self._limits)

    @property
    def token(self) -> int | None:
        """Of the lease that this process has; another one means that others may have been owners in between."""
        state = at(self._state, self._now_s())
        return state.lease.token if isinstance(state, Owning) else None

    @property
    def owner(self) -> str | None:
        """Who was the owner when it last looked, this process included."""
        lease = self._state.lease if isinstance(self._state, Owning) else self._state.seen
        return lease.holder if lease is not None and not lease.is_released else None

    async def wait_until_owner(self) -> None:
        while not self.is_owner:
            self._became_owner.clear()
            await self._became_owner.wait()

    def require(self) -> int:
        """Return if a call to Triton that is sent at once, without any wait between, is this process's to make: the lease's token.

        Raises UpstreamUnavailable: it is another's.
        """
        state, now_s = self._state, self._now_s()
        if self._has_left or not may_begin(state, now_s, self._limits):
            owner = f", {self.owner} does" if self.owner not in (None, self._holder) else ""
            raise UpstreamUnavailable(f"this process does not load and unload the fleet's models now{owner}; try again shortly")
        assert isinstance(state, Owning)
        self._begun_s = now_s
        return state.lease.token

    async def run(self) -> None:
        """Take and keep the lease until cancelled, also through the store's outages."""
        while True:
            try:
                await self._turn()
                delay_s = pause_s(self._state, self._now_s(), self._limits)
                self._is_away = False
            except StoreUnavailable as exc:
                if not self._is_away:
                    _log.warning("the fleet's lease cannot be reached; models are loaded and unloaded only while it lasts: %s", exc)
                self._is_away = True
                delay_s = self._limits.retry_s
            await asyncio.sleep(delay_s)

    async def stop(self) -> None:
        """Begin nothing more, and let the next owner begin at once; call it when `run` has ended.

        What was begun just now may not be in Triton's index yet: then, or without the store, the lease runs out by itself.
        """
        state, self._has_left = at(self._state, self._now_s()), True
        is_settled = self._now_s() - self._begun_s > 2 * self._limits.margin_s
        if isinstance(state, Owning) and is_settled:
            with suppress(StoreUnavailable):
                await self._store.release(state.lease)
        self._become(Watching())
        with suppress(StoreUnavailable):
            await self._store.close()

    async def _turn(self) -> None:
        asked_s = self._now_s()
        self._become(at(self._state, asked_s))
        request = next_request(self._state, asked_s, self._limits)
        found = await self._ask(request)
        self._become(after(self._state, request, found, asked_s=asked_s, now_s=self._now_s(), limits=self._limits))

    async def _ask(self, request: Request) -> Lease | None:
        state = self._state
        match request:
            case Request.LOOK:
                return await self._store.look()
            case Request.TAKE:
                assert isinstance(state, Watching)
                return await self._store.take(state.seen, holder=self._holder, ttl_s=self._limits.ttl_s)
            case Request.RENEW:
                assert isinstance(state, Owning)
                return await self._store.renew(state.lease)
            case _:
                assert_never(request)

    def _become(self, state: State) -> None:
        was, self._state = self._state, state
        if isinstance(state, Owning):
            self._became_owner.set()
        if isinstance(state, Owning) and not isinstance(was, Owning):
            _log.info("this process owns the fleet, token %d", state.lease.token)
        elif isinstance(was, Owning) and not isinstance(state, Owning):
            level = logging.INFO if self._has_left else logging.WARNING
            _log.log(level, "this process owns the fleet no longer, token %d", was.lease.token)
