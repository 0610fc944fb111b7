from __future__ import annotations

import asyncio
from typing import Any

import pytest

from control_plane.core.errors import LimitExceeded, Overloaded
from control_plane.objects.domain.tenant import Tenant
from control_plane.telemetry.shed_reason import ShedReason
from tests.aio import settle
from tests.unit.admission.admission_bench import SOON_S, admission, goes_at_once, turn

pytestmark = pytest.mark.virtual_time


class TestTurns:
    async def test_models_do_not_wait_for_each_other(self) -> None:
        frontend = admission()
        permit = frontend.admit("")
        await turn(permit, "slow")
        assert await goes_at_once(frontend, "other")
        assert not await goes_at_once(frontend, "slow")
        permit.release()

    async def test_weight_and_priority_are_the_tenants(self) -> None:
        frontend, order = admission(Tenant("heavy", weight=3.0), Tenant("first", priority=1)), list[str]()

        async def one(tenant: str) -> None:
            permit = frontend.admit(tenant)
            await turn(permit)
            order.append(tenant)
            permit.release()

        holder = frontend.admit("")
        await turn(holder)
        async with asyncio.TaskGroup() as tasks:
            for tenant in ["", "", "heavy", "heavy", "heavy", "first"]:
                tasks.create_task(one(tenant))
            await settle()
            holder.release()
        assert order == ["first", "", "heavy", "heavy", "heavy", ""]

    async def test_a_cost_that_is_not_known_counts_as_something(self) -> None:
        frontend, order = admission(), list[str]()

        async def one(tenant: str) -> None:
            permit = frontend.admit(tenant)
            await turn(permit, cost_units=-1.0)
            order.append(tenant)
            permit.release()

        holder = frontend.admit("")
        await turn(holder, cost_units=0.0)
        async with asyncio.TaskGroup() as tasks:
            for tenant in "aaabb":
                tasks.create_task(one(tenant))
            await settle()
            holder.release()
        assert order == ["a", "b", "a", "b", "a"]

    @pytest.mark.parametrize("slot_comes_first", [True, False])
    async def test_one_cancelled_in_its_turn_holds_no_slot(self, slot_comes_first: bool) -> None:
        frontend = admission(Tenant("t", concurrency=1))
        holder, leaving = frontend.admit(""), frontend.admit("t")
        await turn(holder)

        async def leave() -> None:
            try:
                await turn(leaving)
            finally:
                leaving.release()

        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(leave())
            await settle()
            if slot_comes_first:
                holder.release()
            task.cancel()
        assert task.cancelled()
        if not slot_comes_first:
            holder.release()
        assert await goes_at_once(frontend)
        frontend.admit("t").release()


class TestShedding:
    async def test_a_full_queue_says_so_and_when_to_come_back(self) -> None:
        frontend = admission(Tenant("t"), room=0)
        holder, late = frontend.admit("t"), frontend.admit("t")
        await turn(holder)
        with pytest.raises(Overloaded, match="too many requests wait for model 'm'") as refusal:
            await turn(late)
        assert refusal.value.retry_after_s == 1.0
        assert frontend.counts == {("t", ShedReason.QUEUE_FULL): 1}

    async def test_a_deadline_that_passes_and_one_that_cannot_be_met_count_alike(self) -> None:
        frontend, loop = admission(Tenant("t")), asyncio.get_running_loop()
        first = frontend.admit("t")
        await turn(first)
        with pytest.raises(Overloaded, match="before the request's deadline"):
            await turn(frontend.admit("t"), seconds=2.0)
        assert loop.time() == pytest.approx(2.0, abs=0.01)
        first.release()
        second = frontend.admit("t")
        await turn(second)
        await asyncio.sleep(1.0)  # until the first is believed
        with pytest.raises(Overloaded, match="before the request's deadline"):
            await turn(frontend.admit("t"), seconds=2.0)
        assert loop.time() == pytest.approx(3.0, abs=0.01)  # 2 s for each are known now
        assert frontend.counts == {("t", ShedReason.DEADLINE): 2}


async def test_any_number_of_models_with_sequences_leaves_a_bounded_number_behind() -> None:
    frontend = admission()
    for number in range(3000):
        permit = frontend.admit("")
        permit.continues_sequence = True
        await turn(permit, f"m{number}")
        permit.release()
    assert len(frontend.slots.sequences) <= 1025
    assert frontend.slots.models == {}


async def test_any_number_of_model_names_leaves_a_bounded_number_behind() -> None:
    frontend = admission(capacity=2)
    busy, ending = frontend.admit(""), frontend.admit("")
    await turn(busy, "busy")
    await turn(ending, "busy")
    for number in range(3000):
        permit = frontend.admit("")
        await turn(permit, f"m{number}")
        permit.release()
    assert len(frontend.slots.models) <= 1025
    one_more, again = frontend.admit(""), frontend.admit("")
    await turn(one_more, "one more")
    ending.release()
    await turn(again, "busy")
    assert not await goes_at_once(frontend, "busy")
    for permit in (one_more, again, busy):
        permit.release()


@pytest.mark.parametrize("limits", [{"requests_per_s": 1.0, "burst": 1}, {"concurrency": 1}], ids=["rate", "concurrency"])
async def test_a_look_refuses_what_would_be_refused_and_takes_nothing(limits: dict[str, Any]) -> None:
    frontend = admission(Tenant("t", **limits))
    for _ in range(5):
        frontend.check("t")
    permit = frontend.admit("t")
    with pytest.raises(LimitExceeded):
        frontend.check("t")
    permit.release()


class TestBackground:
    async def test_it_begins_when_the_callers_request_has_ended_and_ends_with_its_permit(self) -> None:
        frontend = admission(capacity=9)
        below = frontend.in_background()
        request = frontend.admit("")
        assert request is not None
        assert request.try_acquire_slot("other", cost_units=1.0, deadline_s=SOON_S, now_s=0.0)
        permits = [below.admit("") for _ in range(2)]
        assert all(
            permit is not None and not permit.try_acquire_slot("m", cost_units=1.0, deadline_s=SOON_S, now_s=0.0) for permit in permits
        )
        async with asyncio.TaskGroup() as tasks:
            turns = [tasks.create_task(turn(permit)) for permit in permits if permit is not None]
            await settle()
            assert [task.done() for task in turns] == [False, False]
            request.release()
            await settle()
            assert [task.done() for task in turns] == [True, False]
            assert permits[0] is not None
            permits[0].release()
            await settle()
            assert turns[1].done()
        assert permits[1] is not None
        permits[1].release()

    async def test_for_a_model_that_is_preempted_it_begins_beside_a_callers_request(self) -> None:
        frontend = admission(capacity=9)

        async def is_preempted(model: str) -> bool:
            return model == "m"

        below = frontend.in_background(is_preempted)
        request, first, other = frontend.admit(""), below.admit(""), below.admit("")
        assert request is not None
        assert first is not None
        assert other is not None
        assert request.try_acquire_slot("m", cost_units=1.0, deadline_s=SOON_S, now_s=0.0)
        async with asyncio.TaskGroup() as tasks:
            begun = tasks.create_task(turn(first))
            await settle()
            assert begun.done(), "at once, beside the request"
            waits = tasks.create_task(other.acquire_slot("not-preempted", cost_units=1.0, deadline_s=SOON_S))
            first.release()
            await settle()
            assert not waits.done(), "what is not preempted waits for a moment without requests"
            request.release()
            await settle()
            assert waits.done()
        other.release()

    async def test_a_request_that_waits_for_its_turn_is_a_callers_too_until_it_is_shed(self) -> None:
        frontend = admission(capacity=1)
        below = frontend.in_background().admit("")
        assert below is not None
        await turn(below)
        waits = frontend.admit("")
        assert waits is not None
        with pytest.raises(Overloaded):
            await turn(waits, seconds=0.0)
        waits.release()
        below.release()
        assert await goes_at_once(frontend)
        assert frontend.slots.background.are_callers_present
        await asyncio.sleep(2.0)
        assert not frontend.slots.background.are_callers_present
