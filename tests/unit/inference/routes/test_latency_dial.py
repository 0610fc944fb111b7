"""Choice of a route's model by a request's latency budget."""

from __future__ import annotations

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.core.infer_call import InferCall
from control_plane.inference.routes.latency_dial import LatencyDial, budget_s_of
from control_plane.objects.domain.route import FasterModel, Route

CALLS = [InferCall(name, "", "", ()) for name in ("large", "medium", "small")]


class Known:
    """Forecast that a test sets."""

    def __init__(self, **seconds: float) -> None:
        self.seconds = seconds

    def answer_s(self, call: InferCall) -> float:
        return self.seconds.get(call.model_name, 0.0)


@pytest.mark.parametrize(
    ("budget_s", "chosen"), [(1.0, "large"), (0.3, "large"), (0.29, "medium"), (0.1, "medium"), (0.05, "small"), (0.001, "small")]
)
def test_the_most_accurate_one_that_fits_is_chosen_else_the_fastest(budget_s: float, chosen: str) -> None:
    dial = LatencyDial(Known(large=0.3, medium=0.1, small=0.02))
    choice = dial.choose(CALLS, budget_s, tenant="t")
    assert choice.call.model_name == chosen
    assert choice.expected_s == {"large": 0.3, "medium": 0.1, "small": 0.02}[chosen]


def test_one_of_which_nothing_is_known_is_asked() -> None:
    assert LatencyDial(Known(medium=0.1)).choose(CALLS, 0.001, tenant="t").call.model_name == "large"


def test_what_is_late_makes_its_model_seem_slower_and_no_other() -> None:
    dial = LatencyDial(Known(large=0.1, medium=0.1, small=0.02))
    for _ in range(20):
        choice = dial.choose(CALLS, 0.15, tenant="t")
        assert choice.call.model_name == "large"
        dial.answered("r", "large", choice, took_s=0.2)
        if dial.choose(CALLS, 0.15, tenant="t").call.model_name != "large":
            break
    assert dial.choose(CALLS, 0.15, tenant="t").call.model_name == "medium"
    assert dial.totals.keys() == {("r", "large", False)}
    dial.answered("r", "medium", dial.choose(CALLS, 0.15, tenant="t"), took_s=0.15)
    assert dial.totals["r", "medium", True] == 1


def test_a_tenant_whose_requests_take_longer_than_they_look_costs_no_other_the_accurate_model() -> None:
    dial = LatencyDial(Known(large=0.1, medium=0.02, small=0.02))
    odd = even = 0
    for _ in range(500):
        choice = dial.choose(CALLS, 0.15, tenant="odd")
        odd += choice.call.model_name == "large"
        dial.answered("r", choice.call.model_name, choice, took_s=1.0)
        choice = dial.choose(CALLS, 0.15, tenant="even")
        even += choice.call.model_name == "large"
        dial.answered("r", choice.call.model_name, choice, took_s=0.1)
    assert even == 500
    assert odd < 100


def test_invented_tenants_take_no_memory() -> None:
    dial = LatencyDial(Known(large=0.1, medium=0.02, small=0.02))
    for number in range(30_000):
        dial.choose(CALLS[:2], 0.15, tenant=f"t{number}")
    assert len(dial._margins.keys) <= 20_000


ROUTE = Route("r", "large", faster=(FasterModel("small"),), latency_budget_s=0.2)


def test_a_request_without_a_budget_has_its_routes() -> None:
    assert budget_s_of(None, ROUTE) == 0.2
    assert budget_s_of("50", ROUTE) == 0.05


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "50ms", "1e3", "9" * 9, "\u0665\u0660", " 50"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="tidegate-latency-budget-ms must be a whole number of milliseconds up to a day"):
        budget_s_of(text, ROUTE)
