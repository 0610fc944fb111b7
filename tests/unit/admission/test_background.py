from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from control_plane.admission.admission import Admission
from control_plane.admission.background import BackgroundGate
from control_plane.admission.concurrency_limiter import SlotLimits
from control_plane.admission.domain.fair_queue import QueueLimits
from control_plane.admission.domain.idle_capacity import PATIENCE_S, PREEMPTED_AT_ONCE, may_begin, may_begin_preempted
from tests.aio import settle
from tests.sharing import Tenants

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize(
    ("requests", "begun", "servers", "unseen_s", "waited_s", "expected"),
    [
        pytest.param(0, 0, 1, 0.0, 0.0, True, id="a-moment-without-requests"),
        pytest.param(1, 0, 1, 0.0, 0.0, False, id="a-request-is-under-way"),
        pytest.param(0, 1, 1, 0.9, 0.0, False, id="one-at-a-time-while-callers-are-there"),
        pytest.param(0, 99, 1, 1.0, 0.0, True, id="nobody-asks-any-more"),
        pytest.param(1, 0, 1, 0.0, PATIENCE_S, True, id="has-waited-long-enough"),
        pytest.param(1, 1, 1, 0.0, 9.0, False, id="one-at-a-time-however-long-it-waits"),
        pytest.param(1, 1, 3, 0.0, 0.0, True, id="one-of-three-servers-is-idle"),
        pytest.param(2, 1, 3, 0.0, 0.0, False, id="none-of-three-servers-is-idle"),
    ],
)
def test_work_begins_where_a_server_is_idle(
    requests: int, begun: int, servers: int, unseen_s: float, waited_s: float, expected: bool
) -> None:
    assert may_begin(requests=requests, begun=begun, servers=servers, unseen_s=unseen_s, waited_s=waited_s) is expected


@pytest.mark.parametrize(
    ("begun", "servers", "unseen_s", "expected"),
    [
        pytest.param(PREEMPTED_AT_ONCE - 1, 1, 0.0, True, id="at-any-moment"),
        pytest.param(PREEMPTED_AT_ONCE, 1, 0.0, False, id="a-few-at-a-time-while-callers-are-there"),
        pytest.param(PREEMPTED_AT_ONCE, 2, 0.0, True, id="as-many-for-each-server"),
        pytest.param(99, 1, 1.0, True, id="nobody-asks-any-more"),
    ],
)
def test_work_that_is_interrupted_begins_at_any_moment(begun: int, servers: int, unseen_s: float, expected: bool) -> None:
    assert may_begin_preempted(begun=begun, servers=servers, unseen_s=unseen_s) is expected


class Work:
    """Work in the background that goes through a gate, and what has begun of it."""

    def __init__(self) -> None:
        self.gate = BackgroundGate(1, asyncio.get_running_loop().time)
        self.begun: list[int] = []

    @asynccontextmanager
    async def waiting(self, count: int, *, is_preempted: bool = False) -> AsyncIterator[list[asyncio.Task[None]]]:
        """So many pieces that ask to begin, each until the end of the block."""
        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(self._begin(number, is_preempted=is_preempted)) for number in range(count)]
            await settle()
            yield made
            for task in made:
                task.cancel()

    async def _begin(self, number: int, *, is_preempted: bool) -> None:
        await self.gate.begin(is_preempted=is_preempted)
        self.begun.append(number)


async def test_without_callers_nothing_waits() -> None:
    work = Work()
    async with work.waiting(9):
        assert work.begun == list(range(9))


async def test_it_begins_in_order_each_when_no_request_is_under_way() -> None:
    work = Work()
    work.gate.request_began()
    async with work.waiting(3):
        assert work.begun == []
        work.gate.request_ended()
        await settle()
        assert work.begun == [0]
        work.gate.request_began()
        work.gate.end()
        await settle()
        assert work.begun == [0], "a request has come before"
        work.gate.request_ended()
        await settle()
        assert work.begun == [0, 1]
        work.gate.end()
        await settle()
        assert work.begun == [0, 1, 2]


async def test_behind_requests_without_end_some_begins_all_the_same() -> None:
    work = Work()
    work.gate.request_began()
    async with work.waiting(3):
        await asyncio.sleep(1.1 * PATIENCE_S)
        assert work.begun == [0]
        await asyncio.sleep(5 * PATIENCE_S)
        assert work.begun == [0], "not beside another"
        work.gate.end()
        await settle()
        assert work.begun == [0, 1]


async def test_what_is_interrupted_begins_beside_requests_and_the_next_when_one_ends() -> None:
    work = Work()
    work.gate.request_began()
    async with work.waiting(PREEMPTED_AT_ONCE + 2, is_preempted=True):
        assert work.begun == list(range(PREEMPTED_AT_ONCE))
        work.gate.end(is_preempted=True)
        await settle()
        assert work.begun == list(range(PREEMPTED_AT_ONCE + 1))


async def test_what_is_interrupted_keeps_no_other_work_from_an_idle_moment() -> None:
    work = Work()
    work.gate.request_began()
    async with work.waiting(PREEMPTED_AT_ONCE, is_preempted=True), work.waiting(1):
        assert len(work.begun) == PREEMPTED_AT_ONCE
        work.gate.request_ended()
        await settle()
        assert len(work.begun) == PREEMPTED_AT_ONCE + 1


async def test_what_is_interrupted_and_cancelled_leaves_its_turn_to_the_next() -> None:
    work = Work()
    work.gate.request_began()
    async with work.waiting(PREEMPTED_AT_ONCE + 2, is_preempted=True) as tasks:
        work.gate.end(is_preempted=True)  # the turn of the next one, who is cancelled before it knows
        tasks[PREEMPTED_AT_ONCE].cancel()
        await settle()
        assert work.begun[PREEMPTED_AT_ONCE:] == [PREEMPTED_AT_ONCE + 1]


async def test_once_callers_have_gone_all_of_it_begins() -> None:
    work = Work()
    work.gate.request_began()
    work.gate.request_ended()
    assert work.gate.are_callers_present
    async with work.waiting(3):
        assert work.begun == [0]
        await asyncio.sleep(1.5)
        assert work.begun == [0, 1, 2]
        assert not work.gate.are_callers_present


async def test_what_is_cancelled_leaves_its_turn_to_the_next() -> None:
    work = Work()
    work.gate.request_began()
    async with work.waiting(3) as tasks:
        tasks[0].cancel()
        await settle()
        work.gate.request_ended()  # the turn is the second's, who is cancelled before it knows
        tasks[1].cancel()
        await settle()
        assert work.begun == [2]


@pytest.mark.parametrize(
    ("are_callers", "is_interrupted", "expected_s"),
    [
        pytest.param(True, True, 0.1, id="callers-interrupt-it"),
        pytest.param(True, False, 0.2, id="callers-do-not-interrupt-it"),
        pytest.param(False, True, 0.1, id="nothing-else-is-known"),
    ],
)
async def test_what_callers_interrupt_says_nothing_of_what_theirs_take(are_callers: bool, is_interrupted: bool, expected_s: float) -> None:
    frontend = Admission(Tenants(), slots=SlotLimits(9, 9), queue=QueueLimits(), now_s=asyncio.get_running_loop().time)

    async def is_preempted(model: str) -> bool:
        return is_interrupted

    below = frontend.in_background(is_preempted)
    for issued_by, takes_s in ((frontend if are_callers else below, 0.1), (below, 0.5)):
        permit = issued_by.admit("")
        assert permit is not None
        await permit.acquire_slot("m", cost_units=1.0, deadline_s=1e3)
        await asyncio.sleep(takes_s)
        permit.release()
    assert frontend.slots.of("m").answer_s(1.0) == pytest.approx(expected_s)
