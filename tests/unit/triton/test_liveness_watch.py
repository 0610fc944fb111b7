from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf

import pytest

from control_plane.core.algorithms.silence import SilenceLimits
from control_plane.triton.liveness_watch import LivenessWatch
from control_plane.triton.ports import Liveness
from tests.aio import hold_up

pytestmark = pytest.mark.virtual_time


class Bench:
    """A watch on a Triton that answers after `takes_s`, and what it reports."""

    def __init__(self, *, gives_up_after_s: float = inf, believes_refusals: bool = True, limits: SilenceLimits | None = None) -> None:
        self.takes_s = 0.001
        self.says = Liveness.LIVE
        self.asked_s: list[float] = []
        self.told: list[tuple[str, float]] = []
        self.watch = LivenessWatch(
            self, self, name="s0", gives_up_after_s=gives_up_after_s, believes_refusals=believes_refusals, limits=limits
        )

    async def ask(self, *, timeout_s: float) -> Liveness:
        self.asked_s.append(now_s())
        since_s = now_s()
        while now_s() < since_s + timeout_s:
            await asyncio.sleep(0.001)
            if now_s() >= since_s + self.takes_s:
                return self.says
        return Liveness.SILENT

    def fell_silent(self) -> None:
        self.told.append(("silent", now_s()))

    def heard(self) -> None:
        self.told.append(("heard", now_s()))

    def up(self, upstream: object) -> None: ...

    def down(self, reason: str) -> None: ...

    def lost(self, reason: str) -> None: ...

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.watch.run())
            await asyncio.sleep(1.0)
            yield task
            task.cancel()


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def test_it_is_asked_four_times_a_second() -> None:
    bench = Bench()
    async with bench.running():
        assert bench.asked_s[:4] == pytest.approx([0.0, 0.25, 0.5, 0.75], abs=0.02)
        assert not bench.told


async def test_it_is_asked_less_often_where_others_listen() -> None:
    bench = Bench(limits=SilenceLimits(interval_s=1.0))
    async with bench.running():
        await asyncio.sleep(2.5)
        assert bench.asked_s == pytest.approx([0.0, 1.0, 2.0, 3.0], abs=0.02)
        bench.takes_s = inf
        await asyncio.sleep(4.0)
        assert [what for what, _ in bench.told] == ["silent"]


@pytest.mark.parametrize("pause_s", [0.0, 0.1, 0.2])
async def test_a_freeze_is_noticed_in_three_quarters_of_a_second_and_its_end_at_once(pause_s: float) -> None:
    bench = Bench()
    async with bench.running():
        await asyncio.sleep(pause_s)
        frozen_s, bench.takes_s = now_s(), inf
        await asyncio.sleep(5.0)
        (what, at_s), *more = bench.told
        assert what == "silent"
        assert at_s - frozen_s <= 0.76
        assert not more
        thawed_s, bench.takes_s = now_s(), 0.001
        await asyncio.sleep(1.0)
        what, at_s = bench.told[-1]
        assert what == "heard"
        assert at_s - thawed_s <= 0.01, "the probe that it had not answered is answered now"
        assert len(bench.told) == 2


async def test_one_that_answers_late_but_answers_is_not_silent() -> None:
    bench = Bench()
    async with bench.running():
        bench.takes_s = 0.49
        await asyncio.sleep(60.0)
        assert not bench.told


async def test_while_this_process_is_late_itself_nobody_falls_silent() -> None:
    bench = Bench()
    async with bench.running():
        bench.takes_s = inf
        for _ in range(100):
            hold_up(0.2)
            await asyncio.sleep(0.01)
        assert not bench.told
        await asyncio.sleep(0.8)
        assert [what for what, _ in bench.told] == ["silent"], "now it is on time"


async def test_one_that_refuses_is_a_miss_and_is_not_asked_all_the_time() -> None:
    bench = Bench()
    async with bench.running():
        bench.says = Liveness.NOT_LIVE
        before = len(bench.asked_s)
        await asyncio.sleep(2.0)
        assert [what for what, _ in bench.told] == ["silent"]
        assert len(bench.asked_s) - before <= 9


@pytest.mark.parametrize(
    ("says", "within_s"),
    [
        pytest.param(Liveness.NOT_LIVE, 0.3, id="at once if it refuses"),
        pytest.param(Liveness.SILENT, 11.5, id="after a long silence"),
    ],
)
async def test_one_that_others_run_is_given_up(says: Liveness, within_s: float) -> None:
    bench = Bench(gives_up_after_s=10.0)
    async with bench.running() as task:
        bench.says, bench.takes_s = says, inf if says is Liveness.SILENT else 0.001
        gone_s = now_s()
        async with asyncio.timeout(60.0):
            await asyncio.wait((task,))
        assert now_s() - gone_s <= within_s
        assert says is Liveness.NOT_LIVE or now_s() - gone_s >= 9.0


async def test_an_own_one_that_refuses_is_given_up_only_after_a_long_time() -> None:
    bench = Bench(gives_up_after_s=10.0, believes_refusals=False)
    async with bench.running() as task:
        bench.says = Liveness.NOT_LIVE
        gone_s = now_s()
        async with asyncio.timeout(60.0):
            await asyncio.wait((task,))
        assert 9.0 <= now_s() - gone_s <= 11.5


async def test_time_in_which_this_process_was_held_up_itself_is_no_reason_to_give_one_up() -> None:
    bench = Bench(gives_up_after_s=10.0)
    async with bench.running() as task:
        bench.takes_s = inf
        await asyncio.sleep(2.0)
        hold_up(60.0)
        await asyncio.sleep(0.1)
        assert not task.done()
        bench.takes_s = 0.001
        await asyncio.sleep(2.0)
        assert [what for what, _ in bench.told] == ["silent", "heard"]


async def test_one_that_hangs_is_given_up_though_this_process_is_late_now_and_then() -> None:
    bench = Bench(gives_up_after_s=10.0)
    async with bench.running() as task:
        bench.takes_s = inf
        for _ in range(30):
            hold_up(0.2)
            await asyncio.sleep(0.8)
        assert task.done()


async def test_one_that_answers_once_in_a_while_is_never_given_up() -> None:
    bench = Bench(gives_up_after_s=10.0)
    async with bench.running() as task:
        for _ in range(3):
            bench.takes_s = inf
            await asyncio.sleep(7.0)
            bench.takes_s = 0.9
            await asyncio.sleep(2.0)
        assert not task.done()


async def test_a_pause_is_no_reason_to_give_one_up() -> None:
    bench = Bench(gives_up_after_s=10.0)
    async with bench.running() as task:
        for _ in range(3):
            bench.takes_s = inf
            await asyncio.sleep(8.0)
            bench.takes_s = 0.001
            await asyncio.sleep(1.0)
        assert not task.done()
        assert [what for what, _ in bench.told] == ["silent", "heard"] * 3


async def test_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        bench = Bench()
        async with bench.running():
            bench.takes_s = inf
            await asyncio.sleep(3.0)
            bench.takes_s = 0.001
            await asyncio.sleep(1.5)
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("Triton s0 has said nothing for 0.")
    assert said[1].startswith("Triton s0 answers again, after 3.")
