"""The ports of a simulated process, store and Triton, over the network of `tests/unit/fleet/leaders.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from control_plane.core.errors import DeadlineExceeded, StoreUnavailable
from control_plane.core.model import ModelVersion
from control_plane.fleet.domain.leadership.election import LeaseLimits
from control_plane.fleet.domain.leadership.lease import Lease
from control_plane.fleet.loading.load_plans import PlanLimits
from tests.fakes.stores.lease import FakeLeaseStore

if TYPE_CHECKING:
    from tests.unit.fleet.leaders import Process

T = TypeVar("T")
Point = Literal["between check and send", "before the store's answer"]

LIMITS = LeaseLimits(ttl_s=6.0, margin_s=1.0)
PLANS = PlanLimits(load_timeout_s=20.0, release_timeout_s=8.0, call_visible_after_s=2 * LIMITS.margin_s)
STORE_TIMEOUT_S = 1.0
UNLOAD_TIMEOUT_S = 10.0


@dataclass
class Control:
    """The part of `triton/ports.ModelControl` that plans need, over the simulated network."""

    process: Process

    async def index(self) -> list[ModelVersion]:
        return await self.process.calling(self.process.world.triton.index)

    async def load(self, name: str) -> None:
        answer: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        triton, send = self.process.world.triton, self.process.sender(answer)
        await self.process.leave(lambda: triton.load(name, send))
        await _raised(answer, PLANS.load_timeout_s)

    async def unload(self, name: str) -> None:
        answer: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        triton, send = self.process.world.triton, self.process.sender(answer)

        def unload() -> None:
            triton.unload(name)
            send(None)

        await self.process.leave(unload)
        await _raised(answer, UNLOAD_TIMEOUT_S)


async def _raised(answer: asyncio.Future[Exception | None], timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            error = await answer
    except TimeoutError:
        raise DeadlineExceeded("no answer") from None
    if error is not None:
        raise error


@dataclass
class Store:
    """`fleet/ports.LeaseStore` over the simulated network; while the store is away, calls or answers are
    lost."""

    process: Process
    token: int = 0

    async def read(self) -> Lease | None:
        return await self._ask(lambda store: store.read())

    async def acquire(self, seen: Lease | None, *, holder: str, ttl_s: float) -> Lease | None:
        return await self._ask(lambda store: store.acquire(seen, holder=holder, ttl_s=ttl_s))

    async def renew(self, lease: Lease) -> Lease | None:
        return await self._ask(lambda store: store.renew(lease))

    async def resume(self, lease: Lease) -> Lease | None:
        return await self._ask(lambda store: store.resume(lease))

    async def release(self, lease: Lease) -> None:
        await self._ask(lambda store: store.release(lease))

    async def close(self) -> None: ...

    async def _ask(self, what: Callable[[FakeLeaseStore], Awaitable[T]]) -> T:
        record = self.process.world.record
        call = self.process.calling(
            lambda: None if self._is_away() else _at_once(what(FakeLeaseStore(record))), "before the store's answer"
        )
        done = await self._in_time(call)
        if done is None or self._is_away():
            raise StoreUnavailable("it is away")
        return done[0]

    async def _in_time(self, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                return await work
        except TimeoutError:
            raise StoreUnavailable("no answer") from None

    def _is_away(self) -> bool:
        return self.process.world.now_s < max(self.process.world.store_is_away_until_s, self.process.cut_off_until_s)


def _at_once(work: Awaitable[T]) -> tuple[T]:
    """Return the result of a coroutine that awaits nothing, in a tuple."""
    try:
        cast("Any", work).send(None)
    except StopIteration as done:
        return (done.value,)
    raise AssertionError("it waits")
