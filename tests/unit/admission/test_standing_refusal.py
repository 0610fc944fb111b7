"""Refusals of busy models that hold for equal requests: foretold exactly as they are made, and changing nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from control_plane.admission.domain.fair_queue import Ticket
from control_plane.admission.domain.patience_lanes import lane_of
from control_plane.core.errors import Overloaded
from tests.unit.admission.overload.overload_bench import (
    LIMITED,
    NO_TENANTS,
    OPEN,
    PEAK_PER_S,
    TENANTS,
    Bench,
    Triton,
    jitter,
)

pytestmark = pytest.mark.virtual_time


@dataclass
class Foretelling(Bench):
    """Load of which each request is foretold whether it is refused at once."""

    right: Counter[bool] = field(default_factory=Counter)
    """Requests that were foretold rightly, by whether they were refused."""
    wrong: int = 0

    async def _request(self, tenant: str, caller: str, deadline_s: float) -> None:
        now_s, known = self.loop.time(), self.admission.account(tenant).tenant
        ticket = Ticket(known.name, known.weight, known.priority, 1.0, lane_of(deadline_s), came_s=now_s)
        limiter = self.admission.slots.of("m")
        is_foretold = [limiter.would_refuse(ticket, now_s + deadline_s) for _ in range(2)]
        refused_before = len(self.seen.refused_after_s)
        try:
            await super()._request(tenant, caller, deadline_s)
        finally:
            is_refused = self.loop.time() == now_s and len(self.seen.refused_after_s) > refused_before
            if is_foretold == [is_refused] * 2:
                self.right[is_refused] += 1
            else:
                self.wrong += 1


@pytest.mark.parametrize("tenants", [NO_TENANTS, TENANTS], ids=["one tenant", "three"])
@pytest.mark.parametrize("slots", [OPEN, LIMITED], ids=["many slots", "few"])
async def test_a_refusal_at_once_is_foretold(tenants: object, slots: object) -> None:
    bench = Foretelling(slots, Triton(service_s=jitter(0.3)), tenants)  # type: ignore[arg-type]
    await bench.load(60.0, 3 * PEAK_PER_S)
    assert bench.wrong == 0
    assert min(bench.right.values()) > 100
    assert len(bench.right) == 2


async def test_an_error_says_whether_it_holds_for_an_equal_request() -> None:
    bench = Bench(OPEN, Triton(), NO_TENANTS)
    errors: list[Overloaded] = []
    held: list[bool] = []
    overloaded = bench.admission.slots.overloaded

    def holds(error: Overloaded) -> bool:
        return error.holds_for_equals is not None and error.holds_for_equals(0.0)

    def noted(*arguments: Any) -> Overloaded:
        errors.append(overloaded(*arguments))
        bench.loop.call_soon(lambda: held.append(holds(errors[-1])))
        return errors[-1]

    bench.admission.slots.overloaded = noted  # type: ignore[method-assign]
    await bench.load(30.0, 3 * PEAK_PER_S)
    assert held.count(True) > 0.9 * len(held) > 900
    assert not any(map(holds, errors))  # nothing waits any more


async def test_it_does_not_hold_for_one_that_has_much_more_time() -> None:
    bench = Bench(OPEN, Triton(), NO_TENANTS)
    held: list[tuple[bool, bool]] = []
    overloaded = bench.admission.slots.overloaded

    def asked(error: Overloaded) -> None:
        if error.holds_for_equals is not None:
            held.append((error.holds_for_equals(0.0), error.holds_for_equals(-1000.0)))

    def noted(*arguments: Any) -> Overloaded:
        error = overloaded(*arguments)
        bench.loop.call_soon(asked, error)
        return error

    bench.admission.slots.overloaded = noted  # type: ignore[method-assign]
    await bench.load(30.0, 3 * PEAK_PER_S)
    assert held.count((True, False)) > 0.8 * len(held) > 800


async def test_one_for_another_reason_holds_for_nobody() -> None:
    bench = Bench(OPEN, Triton(), NO_TENANTS)
    permit = bench.admission.in_background().admit("")
    assert permit is not None
    permit.mark_as_guest()
    bench.admission.slots.room.requests = 1  # somebody waits: there is no idle room
    with pytest.raises(Overloaded) as caught:
        await permit.acquire_slot("m", cost_units=1.0, deadline_s=bench.loop.time() + 1.0)
    assert caught.value.holds_for_equals is None
    permit.release()
