from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from control_plane.auth import stream_rights as module
from control_plane.auth.access import Access
from control_plane.auth.stream_rights import StreamRights
from control_plane.core.errors import LimitExceeded, Unauthenticated
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.core.scope import EVERYTHING
from tests.fakes.governance import known_state

KEY = Principal("team", "key", EVERYTHING, is_known=True)


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 0.001)


class Bench:
    def __init__(self) -> None:
        self.known = known_state()
        self.today_s = 0.0
        self.asked = 0
        self.answers: Callable[[], Principal] = lambda: KEY
        self.rights = StreamRights(Access(self.known, None), today_s=lambda: self.today_s)

    def reauthenticate(self) -> Principal:
        self.asked += 1
        return self.answers()

    def refuse(self) -> Principal:
        raise Unauthenticated("it has ended")


async def looks(count: int = 5) -> None:
    await asyncio.sleep(0.001 * count * 3)


async def test_while_nothing_changes_nobody_is_asked_again() -> None:
    bench = Bench()
    watch = bench.rights.watch(KEY, bench.reauthenticate)
    await looks()
    assert bench.asked == 1, "once, for what changed since it was let in"
    await looks()
    assert bench.asked == 1
    bench.known.generation += 1
    await looks()
    assert bench.asked == 2
    watch.close()
    bench.known.generation += 1
    await looks()
    assert bench.asked == 2
    assert bench.rights._next_look is None, "and nothing looks where there is nothing"


async def test_a_token_and_what_has_expired_are_asked_about_at_each_look() -> None:
    for principal in (Principal("team", "token", EVERYTHING), Principal("team", "key", EVERYTHING, expires_s=10.0, is_known=True)):
        bench = Bench()
        bench.answers = lambda principal=principal: principal  # type: ignore[misc]
        bench.today_s = 10.0
        watch = bench.rights.watch(principal, bench.reauthenticate)
        while bench.asked < 5:
            await asyncio.sleep(0.001)
        watch.close()


async def test_of_many_streams_a_few_are_asked_about_in_a_turn() -> None:
    bench = Bench()
    watches = [bench.rights.watch(KEY, bench.reauthenticate) for _ in range(100)]
    asked = [0]
    while asked[-1] < len(watches):
        await asyncio.sleep(0)
        asked.append(bench.asked)
    assert max(after - before for before, after in pairwise(asked)) <= 32
    for watch in watches:
        watch.close()


async def test_an_expiry_that_was_set_meanwhile_holds() -> None:
    bench = Bench()
    watch = bench.rights.watch(KEY, bench.reauthenticate)
    bench.answers = lambda: Principal("team", "key", EVERYTHING, expires_s=10.0, is_known=True)
    await looks()
    bench.answers, bench.today_s = bench.refuse, 10.0
    with pytest.raises(Unauthenticated, match="it has ended"):
        async with watch:
            await asyncio.Event().wait()


async def test_what_runs_is_cancelled_and_what_begins_later_does_not_begin() -> None:
    bench, ends = Bench(), list[str]()
    bench.answers = bench.refuse
    watch = bench.rights.watch(KEY, bench.reauthenticate)
    watch.on_end = lambda: ends.append("told")

    async def stream() -> None:
        async with watch:
            try:
                await asyncio.Event().wait()
            finally:
                ends.append("cancelled")

    with pytest.raises(Unauthenticated):
        await stream()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert ends == ["told", "cancelled"]
    with pytest.raises(Unauthenticated):
        async with watch:
            raise AssertionError
    await asyncio.sleep(0)


async def test_a_caller_who_leaves_is_no_refusal() -> None:
    bench = Bench()

    async def stream() -> None:
        async with bench.rights.watch(KEY, bench.reauthenticate):
            await asyncio.Event().wait()

    task = asyncio.get_running_loop().create_task(stream())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_one_that_ends_by_itself_as_its_rights_end_leaves_no_cancellation_behind() -> None:
    bench = Bench()
    bench.answers = bench.refuse
    watch = bench.rights.watch(KEY, bench.reauthenticate)
    with pytest.raises(Unauthenticated):
        async with watch:
            watch.reauthenticate()
    await asyncio.sleep(0)
    await looks(1)


async def test_who_cannot_be_told_just_now_goes_on() -> None:
    bench = Bench()

    def nobody_knows() -> Principal:
        raise LimitExceeded("too many")

    bench.answers = nobody_knows
    watch = bench.rights.watch(Principal("team", "token", EVERYTHING), bench.reauthenticate)
    while bench.asked < 3:
        await asyncio.sleep(0.001)
    assert watch.error is None
    watch.close()


async def test_without_authentication_nothing_is_watched() -> None:
    bench = Bench()
    async with bench.rights.watch(ANONYMOUS, bench.reauthenticate):
        await looks()
    assert (bench.asked, bench.rights._next_look) == (0, None)
