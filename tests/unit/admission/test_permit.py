"""Permit of one request: what it holds, and when that is free again."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import LimitExceeded
from control_plane.objects.domain.tenant import Tenant
from control_plane.telemetry.shed_reason import ShedReason
from tests.unit.admission.admission_bench import SOON_S, admission, goes_at_once, turn

pytestmark = pytest.mark.virtual_time


class TestPermit:
    async def test_a_request_that_finds_a_slot_never_waits(self) -> None:
        permit = admission().admit("")
        going = permit.acquire_slot("m", cost_units=1.0, deadline_s=SOON_S)
        with pytest.raises(StopIteration):  # without a turn of the loop
            going.send(None)
        permit.release()

    async def test_released_it_gives_back_its_slot_and_its_place(self) -> None:
        frontend = admission(Tenant("t", concurrency=1))
        permit = frontend.admit("t")
        await turn(permit)
        with pytest.raises(LimitExceeded):
            frontend.admit("t")
        assert not await goes_at_once(frontend)
        permit.release()
        assert await goes_at_once(frontend)
        frontend.admit("t").release()

    async def test_released_before_its_turn_it_has_used_nothing(self) -> None:
        frontend = admission(Tenant("t", daily_compute_units=1.0))
        for _ in range(3):
            frontend.admit("t").release()
        assert frontend.counts == {}

    async def test_to_release_it_twice_is_a_defect(self) -> None:
        permit = admission().admit("")
        await turn(permit)
        permit.release()
        with pytest.raises(AssertionError, match="released before"):
            permit.release()

    async def test_so_is_a_second_turn_or_one_after_its_release(self) -> None:
        permit = admission(capacity=2).admit("")
        await turn(permit)
        with pytest.raises(AssertionError, match="one turn"):
            await turn(permit)
        permit.release()
        late = admission().admit("")
        late.release()
        with pytest.raises(AssertionError, match="released before"):
            await turn(late)

    async def test_its_units_count_for_the_day_from_its_turn_on(self) -> None:
        frontend = admission(Tenant("t", daily_compute_units=10.0), capacity=2)
        permit = frontend.admit("t")
        await turn(permit, cost_units=10.0)
        with pytest.raises(LimitExceeded):
            frontend.admit("t")
        permit.release()
        with pytest.raises(LimitExceeded):
            frontend.admit("t")
        assert frontend.counts == {("t", ShedReason.QUOTA): 2}

    async def test_its_units_count_once(self) -> None:
        frontend = admission(Tenant("t", daily_compute_units=10.0))
        for _ in range(2):
            permit = frontend.admit("t")
            await turn(permit, cost_units=5.0)
            permit.release()
        with pytest.raises(LimitExceeded):
            frontend.admit("t")

    async def test_in_the_waiting_room_it_has_one_place(self) -> None:
        frontend = admission()
        permit, room = frontend.admit(""), frontend.slots.room
        permit.held_bytes = 10
        for _ in range(2):
            places = [permit.enter_room(1.0) for _ in range(4)]
            assert (room.requests, room.size_bytes) == (1, 10)
            for place in places:
                place.leave()
            assert (room.requests, room.size_bytes) == (0, 0)
        permit.release()


class TestKeeping:
    """Slots of requests that Triton goes on computing after their callers have left."""

    async def test_the_slot_is_free_when_triton_has_ended_and_the_tenants_place_at_once(self) -> None:
        frontend = admission(Tenant("t", concurrency=1))
        permit = frontend.admit("t")
        await turn(permit)
        permit.keep()
        permit.release()
        assert not await goes_at_once(frontend)
        frontend.admit("t").release()
        permit.let_go()
        assert await goes_at_once(frontend)

    async def test_of_several_parts_the_last_frees_it(self) -> None:
        frontend = admission()
        permit = frontend.admit("")
        await turn(permit)
        permit.keep()
        permit.keep()
        permit.let_go()
        permit.release()
        assert not await goes_at_once(frontend)
        permit.let_go()
        assert await goes_at_once(frontend)

    async def test_what_ended_before_the_release_frees_nothing_yet(self) -> None:
        frontend = admission()
        permit = frontend.admit("")
        await turn(permit)
        permit.keep()
        permit.let_go()
        assert not await goes_at_once(frontend)
        permit.release()
        assert await goes_at_once(frontend)

    async def test_a_send_that_was_taken_back_keeps_nothing_but_the_next_one_may(self) -> None:
        frontend = admission()
        permit = frontend.admit("")
        await turn(permit)
        permit.keep()
        permit.forsake()
        permit.keep()
        permit.release()
        assert not await goes_at_once(frontend)
        for _ in range(2):  # whichever of the two ends first
            permit.let_go()
            assert await goes_at_once(frontend)
        assert frontend.slots.of("m").are_idle

    async def test_beside_one_that_was_taken_back_a_batch_that_is_given_up_frees_it_once(self) -> None:
        frontend = admission()
        permit = frontend.admit("")
        await turn(permit)
        permit.keep()  # by the race of a hedged batch
        permit.forsake()  # for another batch
        permit.release()
        next_one = frontend.admit("")
        await turn(next_one)
        permit.keep()  # the race's send, which is cancelled now
        permit.let_go()
        permit.let_go()
        assert not await goes_at_once(frontend), "the next one has the slot"
        next_one.release()
        assert frontend.slots.of("m").are_idle

    async def test_what_a_silent_server_goes_on_with_is_none_of_the_slots_time(self) -> None:
        frontend = admission()
        permit = frontend.admit("")
        await turn(permit)
        permit.keep()
        permit.forsake()
        await asyncio.sleep(1.0)
        permit.release()
        assert await goes_at_once(frontend)
        await asyncio.sleep(10.0)
        permit.let_go()
        assert frontend.slots.of("m")._service.answer_s(1.0, ahead=0.0) == pytest.approx(1.0)

    @pytest.mark.parametrize(("sent_s", "is_known"), [(float("-inf"), True), (9.0, True), (float("inf"), False)])
    async def test_its_service_time_begins_when_it_was_sent(self, sent_s: float, is_known: bool) -> None:
        frontend = admission()
        permit = frontend.admit("")
        await turn(permit)
        await asyncio.sleep(10.0)
        permit.release(sent_s=sent_s)
        expected_s = 10.0 if sent_s < 0 else 1.0
        told_s = frontend.slots.of("m")._service.answer_s(1.0, ahead=0.0)
        assert told_s == (pytest.approx(expected_s) if is_known else None)
