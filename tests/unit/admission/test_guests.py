"""Requests of other regions: they never wait, and take a slot only while nobody of this region would wait long for it."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.admission.admission import Admission
from control_plane.admission.concurrency_limiter import SlotLimits
from control_plane.admission.domain.fair_queue import QueueLimits
from control_plane.admission.domain.idle_capacity import GUESTS_AHEAD_S, may_take_guest
from control_plane.admission.permit import Permit
from control_plane.core.errors import Overloaded
from control_plane.telemetry.shed_reason import ShedReason
from tests.aio import settle
from tests.fakes.governance import known_state

pytestmark = pytest.mark.virtual_time

FAR_S = 1000.0


@pytest.mark.parametrize(
    ("is_strained", "ahead_s", "fullness", "expected"),
    [
        pytest.param(False, 0.0, 0.0, True, id="nothing is under way"),
        pytest.param(False, GUESTS_AHEAD_S, 0.4, True, id="a little is"),
        pytest.param(False, GUESTS_AHEAD_S + 0.001, 0.0, False, id="others would wait long"),
        pytest.param(False, 0.0, 0.5, False, id="half of the slots are taken"),
        pytest.param(True, 0.0, 0.0, False, id="this region's own wait"),
    ],
)
def test_they_are_taken_while_there_is_idle_room(is_strained: bool, ahead_s: float, fullness: float, expected: bool) -> None:
    assert may_take_guest(is_strained=is_strained, ahead_s=ahead_s, fullness=fullness) is expected


class Bench:
    """A model with these slots, of which each request takes `step_s` alone."""

    def __init__(self, slots: int = 8, *, step_s: float = 0.02) -> None:
        self.now_s = asyncio.get_running_loop().time
        limits = SlotLimits(slots, slots)
        self.admission = Admission(known_state(), slots=limits, queue=QueueLimits(), now_s=self.now_s)
        self.step_s = step_s

    def permit(self, *, is_guest: bool = False) -> Permit:
        permit = self.admission.admit("team")
        assert permit is not None
        if is_guest:
            permit.mark_as_guest()
        return permit

    def begin(self, *, is_guest: bool = False, left_s: float = FAR_S) -> Permit | None:
        permit, now_s = self.permit(is_guest=is_guest), self.now_s()
        if permit.try_acquire_slot("m", cost_units=1.0, deadline_s=now_s + left_s, now_s=now_s):
            return permit
        permit.release()
        return None

    async def learn(self) -> None:
        """Have what a request takes measured, alone and behind others."""
        for count in (1, 1, 3, 3, 3):
            begun = [self.begin() for _ in range(count)]
            for permit in begun:
                assert permit is not None
                await asyncio.sleep(self.step_s)
                permit.release(sent_s=0.0)


async def test_few_are_taken_so_that_a_request_of_this_region_hardly_waits() -> None:
    bench = Bench(100)
    await bench.learn()
    taken = [bench.begin(is_guest=True) for _ in range(50)]
    count = sum(each is not None for each in taken)
    assert 1 <= count <= 2 + GUESTS_AHEAD_S / bench.step_s
    assert bench.begin() is not None, "a request of this region gets its slot all the same"


async def test_of_a_slow_model_one_at_a_time() -> None:
    bench = Bench(step_s=2.0)
    await bench.learn()
    assert bench.begin(is_guest=True) is not None
    assert bench.begin(is_guest=True) is None


async def test_nothing_is_known_yet_of_a_model_so_one_at_a_time() -> None:
    bench = Bench()
    assert bench.begin(is_guest=True) is not None
    assert bench.begin(is_guest=True) is None


async def test_one_whose_time_would_not_do_behind_others_is_not_taken() -> None:
    bench = Bench(100)
    await bench.learn()
    assert bench.begin() is not None
    assert bench.begin(is_guest=True, left_s=0.02) is None
    assert bench.begin(is_guest=True, left_s=1.0) is not None


async def test_none_is_taken_while_one_of_this_region_waits_and_the_refusal_is_at_once() -> None:
    bench = Bench(1)
    held = bench.begin()
    assert held is not None
    async with asyncio.TaskGroup() as tasks:
        waiting = bench.permit()
        waits = tasks.create_task(waiting.acquire_slot("m", cost_units=1.0, deadline_s=bench.now_s() + FAR_S))
        await settle()
        guest, now_s = bench.permit(is_guest=True), bench.now_s()
        with pytest.raises(Overloaded, match="other regions"):
            await guest.acquire_slot("other", cost_units=1.0, deadline_s=now_s + FAR_S)
        assert bench.now_s() == now_s
        assert bench.admission.counts == {("team", ShedReason.NO_IDLE_ROOM): 1}
        guest.release()
        held.release()
        await waits
        waiting.release()


async def test_that_one_was_late_is_no_danger_for_this_region() -> None:
    bench = Bench(100)
    await bench.learn()
    guest = bench.begin(is_guest=True, left_s=0.021)
    assert guest is not None
    await asyncio.sleep(0.02)
    guest.release()
    assert bench.begin(is_guest=True) is not None


async def test_its_renewed_permit_is_one_of_another_region_too() -> None:
    guest = Bench().permit(is_guest=True)
    assert guest.renewed().is_guest
