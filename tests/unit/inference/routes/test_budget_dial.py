"""Choice of a route's model by a request's budgets."""

from __future__ import annotations

import pytest

from control_plane.core.infer_call import InferCall
from control_plane.inference.domain.budgets import Budgets
from control_plane.inference.routes.budget_dial import BudgetChoice, BudgetDial, Expected

CALLS = [InferCall(name, "", "", ()) for name in ("large", "medium", "small")]


class Known:
    """Forecast that a test sets."""

    def __init__(self, **seconds: float) -> None:
        self.seconds = seconds

    def expected(self, call: InferCall) -> Expected:
        return Expected(self.seconds.get(call.model_name, 0.0))


def choose(dial: BudgetDial, budget_s: float, *, tenant: str = "t", calls: list[InferCall] = CALLS) -> BudgetChoice:
    return dial.choose(calls, Budgets(budget_s), tenant=tenant)


@pytest.mark.parametrize(
    ("budget_s", "chosen"), [(1.0, "large"), (0.3, "large"), (0.29, "medium"), (0.1, "medium"), (0.05, "small"), (0.001, "small")]
)
def test_the_most_accurate_one_that_fits_is_chosen_else_the_fastest(budget_s: float, chosen: str) -> None:
    dial = BudgetDial(Known(large=0.3, medium=0.1, small=0.02))
    choice = choose(dial, budget_s)
    assert choice.call.model_name == chosen
    assert choice.expected.answer_s == {"large": 0.3, "medium": 0.1, "small": 0.02}[chosen]


def test_one_of_which_nothing_is_known_is_asked() -> None:
    assert choose(BudgetDial(Known(medium=0.1)), 0.001).call.model_name == "large"


def test_what_is_late_makes_its_model_seem_slower_and_no_other() -> None:
    dial = BudgetDial(Known(large=0.1, medium=0.1, small=0.02))
    for _ in range(20):
        choice = choose(dial, 0.15)
        assert choice.call.model_name == "large"
        dial.answered("r", "large", choice, took_s=0.2)
        if choose(dial, 0.15).call.model_name != "large":
            break
    assert choose(dial, 0.15).call.model_name == "medium"
    assert dial.totals.keys() == {("latency", "r", "large", "late")}
    dial.answered("r", "medium", choose(dial, 0.15), took_s=0.15)
    assert dial.totals["latency", "r", "medium", "within"] == 1


def test_a_tenant_whose_requests_take_longer_than_they_look_costs_no_other_the_accurate_model() -> None:
    dial = BudgetDial(Known(large=0.1, medium=0.02, small=0.02))
    odd = even = 0
    for _ in range(500):
        choice = choose(dial, 0.15, tenant="odd")
        odd += choice.call.model_name == "large"
        dial.answered("r", choice.call.model_name, choice, took_s=1.0)
        choice = choose(dial, 0.15, tenant="even")
        even += choice.call.model_name == "large"
        dial.answered("r", choice.call.model_name, choice, took_s=0.1)
    assert even == 500
    assert odd < 100


def test_invented_tenants_take_no_memory() -> None:
    dial = BudgetDial(Known(large=0.1, medium=0.02, small=0.02))
    for number in range(30_000):
        choose(dial, 0.15, tenant=f"t{number}", calls=CALLS[:2])
    assert len(dial._records.keys) <= 20_000


def test_one_that_is_quick_again_is_asked_again() -> None:
    known = Known(large=0.2)
    dial = BudgetDial(known)
    tries = [choose(dial, 0.1).call.model_name == "large" for _ in range(26)]
    assert (sum(tries), tries[-1]) == (1, True)
    known.seconds["large"] = 0.09
    assert choose(dial, 0.1).call.model_name == "large"


def test_one_that_answers_late_again_and_again_gets_a_tenth_of_the_requests() -> None:
    dial, late = BudgetDial(Known(large=0.05)), 0
    for _ in range(2_000):
        choice = choose(dial, 0.1)
        if choice.call.model_name == "large":
            dial.answered("r", "large", choice, took_s=0.2)
            late += 1
    assert 100 < late < 250
