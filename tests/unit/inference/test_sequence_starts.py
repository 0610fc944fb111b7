"""Requests of sequences whose starts wait in Triton, beside those of sequences under way."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from control_plane.core.errors import DeadlineExceeded
from control_plane.core.infer_call import InferCall
from control_plane.inference.inference import InferenceService
from tests.aio import settle
from tests.unit.inference.governed_bench import Bench, Request, now_s
from tests.unit.inference.model_configuration.sequence_types_bench import NUMBER, ensemble, taking, types_of


class _Step(Request):
    """A request of a sequence that Triton answers when it `may_answer`."""

    def __init__(self, sequence: int = 7, *, starts: bool = False, model: str = "m", timeout_s: float | None = None) -> None:
        super().__init__(timeout_s=timeout_s)
        self._call = replace(NUMBER, model_name=model, sequence_id=str(sequence), starts_sequence=starts)
        self.may_answer.clear()

    def read_at_once(self) -> InferCall:  # type: ignore[override]
        return self._call

    @property
    def is_sent(self) -> bool:
        return bool(self.timeouts_s)


def serving(**configs: Any) -> InferenceService:
    """The service of a Triton with these models, each with four slots."""
    service = Bench(max_in_flight_per_model=4).service
    service.sequence_types = types_of(**configs)
    return service


@pytest.mark.parametrize(
    ("config", "sent"), [pytest.param(taking(), True, id="sequences"), pytest.param({}, False, id="a model that takes no notice of the id")]
)
async def test_a_sequence_under_way_does_not_wait_behind_starts(config: dict[str, Any], sent: bool) -> None:
    service = serving(m=config)
    starts, later = [_Step(100 + number, starts=True) for number in range(5)], _Step()
    async with asyncio.TaskGroup() as tasks:
        for request in (*starts, later):
            tasks.create_task(service.infer(request))
            await settle()
        assert [request.is_sent for request in starts] == [True, True, True, True, False]
        assert later.is_sent is sent
        for request in (*starts, later):
            request.may_answer.set()


async def test_a_flood_of_later_requests_waits_for_slots_of_its_own() -> None:
    service = serving(m=taking())
    flood, start = [_Step() for _ in range(9)], _Step(8, starts=True)
    async with asyncio.TaskGroup() as tasks:
        for request in (*flood, start):
            tasks.create_task(service.infer(request))
            await settle()
        assert sum(request.is_sent for request in flood) == 4
        assert start.is_sent
        for request in (*flood, start):
            request.may_answer.set()
    assert all(len(request.timeouts_s) == 1 for request in flood), "each has its turn"
    admission = service._governance.admission
    assert admission.slots.of("m").are_idle
    assert admission.slots.of("m", continues_sequence=True).are_idle


@pytest.mark.parametrize("way", ["m", "e"])
async def test_what_follows_a_start_that_waits_in_triton_takes_no_slot_of_sequences_under_way(way: str) -> None:
    service = serving(m=taking(), e=ensemble(("m", -1)))
    start, again = _Step(starts=True), _Step(starts=True)
    flood, under_way = [_Step(model=way) for _ in range(9)], _Step(8, model=way)
    async with asyncio.TaskGroup() as tasks:
        for request in (start, again, *flood, under_way):
            tasks.create_task(service.infer(request))
            await settle()
        assert not any(request.is_sent for request in flood)
        assert under_way.is_sent
        again.may_answer.set()
        await settle()
        assert not any(request.is_sent for request in flood), "another start of the sequence is still there"
        for request in (start, under_way):
            request.may_answer.set()
        await settle()
        assert sum(request.is_sent for request in flood) == 4
        for request in flood:
            request.may_answer.set()
    assert service._governance.admission.slots.room.requests == 0


async def test_it_waits_too_for_a_start_that_triton_goes_on_with_though_its_caller_has_left() -> None:
    service = serving(m=taking())
    start, later = _Step(starts=True), _Step()
    async with asyncio.TaskGroup() as tasks:
        leaving = tasks.create_task(service.infer(start))
        await settle()
        assert start.slot is not None
        start.slot.keep()
        leaving.cancel()
        tasks.create_task(service.infer(later))
        await settle()
        assert not later.is_sent
        start.slot.let_go()
        await settle()
        assert later.is_sent
        later.may_answer.set()


async def test_it_waits_until_its_deadline_at_most_and_no_longer_than_its_caller() -> None:
    service = serving(m=taking())
    start, late, left = _Step(starts=True), _Step(timeout_s=1.0), _Step()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(service.infer(start))
        leaving = tasks.create_task(service.infer(left))
        await settle()
        began_s = now_s()
        with pytest.raises(DeadlineExceeded, match="starts this sequence"):
            await service.infer(late)
        assert now_s() - began_s == pytest.approx(1.0, abs=0.1)
        leaving.cancel()
        with suppress(asyncio.CancelledError):
            await leaving
        assert service._governance.admission.slots.room.requests == 0
        start.may_answer.set()
    assert not late.is_sent
    assert not left.is_sent
