from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.core.infer_call import InferCall
from control_plane.inference.retries.faults import Fault
from control_plane.inference.routes.fallback import TargetFallback
from control_plane.inference.routes.targets import Arm
from control_plane.objects.domain.route import Route, Target
from control_plane.protocols.http1 import make_answer

ROUTE = Route("r", "stable", targets=(Target("canary", 5000),))
STABLE, CANARY = (InferCall(name, "", "", ()) for name in ("stable", "canary"))
LOST = UpstreamUnavailable("Triton closed the connection before it answered")
"""A fault after which only what may be computed twice is sent again, from the retry budget."""
NOT_SENT = UpstreamUnavailable("cannot connect", is_not_sent=True)
"""A fault after which everything is, for nothing."""
SUCCESS = make_answer(200)


def request(*, sequence_id: str = "", **running: Any) -> Any:
    state = {"is_repeatable": True, "is_computed_in_part": False, "has_flight": False, "is_cache_hit": False} | running
    return SimpleNamespace(call=SimpleNamespace(sequence_id=sequence_id), expected_units=2.0, **state)


class Bench:
    """A fallback at second 10, with a retry budget that a test opens or closes."""

    def __init__(self, *, has_budget: bool = True) -> None:
        self.seen: list[Fault | None] = []
        self.spent: list[float] = []
        observations = SimpleNamespace(add=lambda arm, running, fault, now_s: self.seen.append(fault))
        retries = SimpleNamespace(owed_requests=0.0, try_spend=lambda units, may_owe: self.spent.append(units) or has_budget)
        self.fallback = TargetFallback(cast("Any", observations), cast("Any", SimpleNamespace()), cast("Any", retries), now_s=lambda: 10.0)

    def falls_back(
        self, came: object = LOST, *, is_stable: bool = False, is_assigned: bool = True, deadline_s: float = 11.0, **running: Any
    ) -> bool:
        arm = Arm(ROUTE, STABLE if is_stable else CANARY, STABLE, 7, is_assigned)
        return self.fallback.observe_and_may_fall_back(arm, came, request(**running), deadline_s)

    async def answer(self, *came: object) -> tuple[object, list[tuple[str, float]]]:
        """Have a request answered that the canary and then the route's own model meet with these; return what was asked for, and
        within how many seconds."""
        asked, left = list[tuple[str, float]](), iter(came)

        async def ask(left_s: float) -> object:
            asked.append(("ask", left_s))
            if isinstance(each := next(left), Exception):
                raise each
            return each

        async def divert(left_s: float) -> float:
            asked.append(("divert", left_s))
            return left_s / 2

        answer = await self.fallback.answer(Arm(ROUTE, CANARY, STABLE, 7, True), request(), 14.0, ask=ask, divert=divert)
        return answer, asked


@pytest.mark.parametrize(("came", "fault", "spent"), [(LOST, Fault.CONNECTION_LOST, [2.0]), (NOT_SENT, Fault.NOT_SENT, [])])
def test_the_routes_own_model_answers_what_another_has_failed(came: Exception, fault: Fault, spent: list[float]) -> None:
    bench = Bench()
    assert bench.falls_back(came)
    assert (bench.seen, bench.spent) == ([fault], spent)


@pytest.mark.parametrize("why", [{"is_repeatable": False}, {"sequence_id": "1"}])
def test_what_must_not_be_computed_twice_is_only_answered_if_it_was_not_sent(why: dict[str, Any]) -> None:
    bench = Bench()
    assert not bench.falls_back(LOST, **why)
    assert bench.falls_back(NOT_SENT, **why)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param({"came": SUCCESS}, id="no fault"),
        pytest.param({"is_stable": True}, id="the route's own model's fault"),
        pytest.param({"is_assigned": False}, id="a target that its caller has chosen"),
        pytest.param({"came": DeadlineExceeded("Deadline Exceeded")}, id="its time is over"),
        pytest.param({"deadline_s": 10.0}, id="its deadline has come"),
        pytest.param({"is_computed_in_part": True}, id="parts of it were computed"),
        pytest.param({"has_flight": True}, id="its flight goes on for others"),
    ],
)
def test_nothing_is_answered_by_another_model_and_the_budget_is_kept(case: dict[str, Any]) -> None:
    bench = Bench()
    assert not bench.falls_back(**case)
    assert len(bench.seen) == 1, "it is observed all the same"
    assert not bench.spent


def test_without_a_budget_the_fault_is_the_answer() -> None:
    bench = Bench(has_budget=False)
    assert not bench.falls_back()
    assert bench.spent == [2.0]


async def test_the_routes_own_model_is_asked_once_the_request_is_turned_to_it() -> None:
    bench = Bench()
    assert await bench.answer(LOST, SUCCESS) == (SUCCESS, [("ask", 4.0), ("divert", 4.0), ("ask", 2.0)])
    assert bench.seen == [Fault.CONNECTION_LOST]


async def test_what_its_own_model_has_answered_is_asked_once() -> None:
    assert await Bench().answer(SUCCESS) == (SUCCESS, [("ask", 4.0)])


async def test_the_first_fault_is_raised_where_the_request_may_not_be_turned() -> None:
    with pytest.raises(UpstreamUnavailable):
        await Bench(has_budget=False).answer(LOST)
