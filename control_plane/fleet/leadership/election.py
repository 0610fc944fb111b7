"""Leader election: acquires the fleet's lease, renews it, and tells whether this process may still act as leader.

`fleet/domain/leadership/election` decides. `fleet/loading/load_plans` calls `require` right before each call to Triton. The lease
expires also while its store is unreachable or this process is paused, by a clock that runs on during a pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import assert_never

from control_plane.concurrency.broadcast import Broadcast
from control_plane.core.errors import StoreUnavailable, UpstreamUnavailable
from control_plane.fleet.domain.leadership.election import (
    Following,
    Leading,
    LeaseLimits,
    LeaseRequest,
    State,
    after,
    at,
    may_begin,
    next_request,
    pause_s,
)
from control_plane.fleet.domain.leadership.lease import Lease
from control_plane.fleet.ports import LeaseStore
from control_plane.host.boot_clock import boot_time_s

_log = logging.getLogger(__name__)


class LeaderElection:
    """Leader lease of this process: whether it is the fleet's leader, and until when it may rely on that."""

    def __init__(
        self,
        store: LeaseStore,
        *,
        holder: str,
        limits: LeaseLimits | None = None,
        now_s: Callable[[], float] = boot_time_s,
        of_what: str = "the fleet",
    ) -> None:
        """`holder` is unique to this run of this process: after a restart it must be another name. `of_what` is for the log."""
        self._of_what = of_what
        self._store = store
        self._holder = holder
        self._limits = limits or LeaseLimits()
        self._now_s = now_s
        self._state: State = Following()
        self._became_leader = Broadcast()
        self._begun_s = float("-inf")
        """When this process last began a call to Triton."""
        self._has_left = False
        self._is_away = False

    @property
    def is_leader(self) -> bool:
        """Whether this process is the leader, with enough time left to begin a call."""
        return not self._has_left and may_begin(self._state, self._now_s(), self._limits)

    @property
    def token(self) -> int | None:
        """Fencing token of the lease that this process has; another token later means that other processes
        may have been leaders in between."""
        state = at(self._state, self._now_s())
        return state.lease.token if isinstance(state, Leading) else None

    @property
    def leader(self) -> str | None:
        """The holder of the lease as last seen, which may be this process; None if there is none."""
        lease = self._state.lease if isinstance(self._state, Leading) else self._state.seen
        return lease.holder if lease is not None and not lease.is_released else None

    async def wait_until_leader(self) -> None:
        """Return as soon as this process is the leader."""
        while not self.is_leader:
            await self._became_leader.wait()

    def require(self) -> int:
        """Return the lease's token if this process may send a call to Triton now; the caller must send it
        without awaiting anything in between.

        Raises UpstreamUnavailable: another process is the leader, or may be.
        """
        state, now_s = self._state, self._now_s()
        if self._has_left or not may_begin(state, now_s, self._limits):
            leader = f", {self.leader} does" if self.leader not in (None, self._holder) else ""
            raise UpstreamUnavailable(f"this process does not load and unload the fleet's models now{leader}; try again shortly")
        assert isinstance(state, Leading)
        self._begun_s = now_s
        return state.lease.token

    async def run(self) -> None:
        """Take and keep the lease until cancelled, also through outages of the store."""
        while True:
            try:
                await self._turn()
                delay_s = pause_s(self._state, self._now_s(), self._limits)
                self._is_away = False
            except StoreUnavailable as exc:
                if not self._is_away:
                    _log.warning("the lease of %s cannot be reached; its leader goes on only while it lasts: %s", self._of_what, exc)
                self._is_away = True
                delay_s = self._limits.retry_s
            await asyncio.sleep(delay_s)

    async def stop(self) -> None:
        """Start no more work, and release the lease so that the next leader need not wait; call it after
        `run` has ended.

        What was begun just now may not be in Triton's index yet: then, and without the store, the lease is
        left to expire.
        """
        state, self._has_left = at(self._state, self._now_s()), True
        # Released at once, the next leader could look before the index shows the call, and load beside it.
        is_settled = self._now_s() - self._begun_s > 2 * self._limits.margin_s
        if isinstance(state, Leading) and is_settled:
            with suppress(StoreUnavailable):
                await self._store.release(state.lease)
        self._become(Following())
        with suppress(StoreUnavailable):
            await self._store.close()

    async def _turn(self) -> None:
        """Send one request to the store, and take over what its answer means."""
        # Read before the request is sent: the lease counts from when it was asked for, not from the answer.
        asked_s = self._now_s()
        # The lease may have expired since the last turn, which decides what to ask.
        self._become(at(self._state, asked_s))
        request = next_request(self._state, asked_s, self._limits)
        found = await self._ask(request)
        if request is LeaseRequest.RESUME and found is None:
            self._become(Following())
            await self._turn()  # the wait for the lease begins with the first look
            return
        self._become(after(self._state, request, found, asked_s=asked_s, now_s=self._now_s(), limits=self._limits))

    async def _ask(self, request: LeaseRequest) -> Lease | None:
        """Make one request to the store, and return the lease that it answers with."""
        state = self._state
        match request:
            case LeaseRequest.READ:
                return await self._store.read()
            case LeaseRequest.ACQUIRE:
                assert isinstance(state, Following)
                return await self._store.acquire(state.seen, holder=self._holder, ttl_s=self._limits.ttl_s)
            case LeaseRequest.RENEW:
                assert isinstance(state, Leading)
                return await self._store.renew(state.lease)
            case LeaseRequest.RESUME:
                assert isinstance(state, Following)
                assert state.had is not None
                return await self._store.resume(state.had)
            case _:
                assert_never(request)

    def _become(self, state: State) -> None:
        """Change the state, and log when leadership begins or ends."""
        was, self._state = self._state, state
        if isinstance(state, Leading):
            self._became_leader.wake()
        if isinstance(state, Leading) and not isinstance(was, Leading):
            _log.info("this process leads %s, token %d", self._of_what, state.lease.token)
        elif isinstance(was, Leading) and not isinstance(state, Leading):
            # Expected at a shutdown; otherwise the process was paused, or the store was away.
            level = logging.INFO if self._has_left else logging.WARNING
            _log.log(level, "this process leads %s no longer, token %d", self._of_what, was.lease.token)
