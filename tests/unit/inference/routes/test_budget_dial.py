"""Choice of a route's model by a request's budgets."""

from __future__ import annotations

import pytest

from control_plane.core.infer_call import InferCall
from control_plane.core.tensor import Tensor
from control_plane.inference.domain.budgets import Budgets
from control_plane.inference.model_names import ModelNames
from control_plane.inference.routes.budget_dial import AdmissionForecast, BudgetChoice, BudgetDial, Expected
from control_plane.triton.servers import Servers
from tests.fakes.governance import FakeCosts, governance

CALLS = [InferCall(name, "", "", ()) for name in ("large", "medium", "small")]


class Known:
    """Forecast that a test sets."""

    def __init__(self, *, by_tables: bool = False, units: dict[str, float] | None = None, **seconds: float) -> None:
        """`by_tables`: whether latency tables say the units; else Triton's statistics do."""
        self.seconds, self.units, self.by_tables = seconds, units or {}, by_tables

    def expected(self, call: InferCall) -> Expected:
        units = self.units.get(call.model_name)
        return Expected(self.seconds.get(call.model_name, 0.0), units, units or 0.0 if self.by_tables else 0.0)


def choose(
    dial: BudgetDial, budget_s: float | None, cost_units: float | None = None, *, tenant: str = "t", calls: list[InferCall] = CALLS
) -> BudgetChoice:
    return dial.choose(calls, Budgets(budget_s, cost_units), tenant=tenant)


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


def test_who_gave_up_before_his_budget_was_over_teaches_nothing() -> None:
    """Else a caller with short deadlines would make the model seem fast to all of his tenant."""
    dial = BudgetDial(Known(large=0.1, medium=0.02))
    for _ in range(100):
        dial.answered("r", "large", choose(dial, 1.0), took_s=0.01, has_expired=True)
    assert not dial.totals
    assert [choose(dial, budget_s).call.model_name for budget_s in (0.1, 0.09)] == ["large", "medium"]


def test_what_had_not_come_when_its_budget_was_over_was_late() -> None:
    dial = BudgetDial(Known(large=0.1, medium=0.02))
    dial.answered("r", "large", choose(dial, 0.5), took_s=0.6, has_expired=True)
    assert dial.totals == {("latency", "r", "large", "late"): 1}
    assert choose(dial, 0.1).call.model_name == "medium"


UNITS = {"large": 30.0, "medium": 10.0, "small": 2.0}


@pytest.mark.parametrize("by_tables", [False, True])
@pytest.mark.parametrize(
    ("budget", "chosen"), [(1e9, "large"), (30.0, "large"), (29.0, "medium"), (10.0, "medium"), (9.9, "small"), (0.5, "small")]
)
def test_the_most_accurate_one_that_is_cheap_enough_is_chosen_else_the_last(by_tables: bool, budget: float, chosen: str) -> None:
    choice = choose(BudgetDial(Known(units=UNITS, by_tables=by_tables)), None, budget)
    assert choice.call.model_name == chosen
    assert choice.expected.units == UNITS[chosen]


def test_one_whose_cost_nobody_knows_is_asked_and_counted_as_that() -> None:
    dial = BudgetDial(Known(units={"medium": 10.0}))
    choice = choose(dial, None, 0.001)
    assert choice.call.model_name == "large"
    dial.answered("r", "large", choice, took_s=0.1)
    assert dial.totals == {("cost", "r", "large", "unknown"): 1}


@pytest.mark.parametrize(
    ("budget_s", "cost_units", "chosen"),
    [(1.0, 30.0, "large"), (0.2, 30.0, "medium"), (1.0, 10.0, "medium"), (0.2, 10.0, "medium"), (0.2, 9.0, "small"), (0.05, 30.0, "small")],
)
def test_of_two_budgets_both_are_kept(budget_s: float, cost_units: float, chosen: str) -> None:
    dial = BudgetDial(Known(units=UNITS, large=0.3, medium=0.1, small=0.02))
    assert choose(dial, budget_s, cost_units).call.model_name == chosen


def test_each_budget_is_counted_by_itself() -> None:
    dial = BudgetDial(Known(units=UNITS, large=0.3, medium=0.1, small=0.02))
    dial.answered("r", "small", choose(dial, 0.05, 1.0), took_s=0.04)
    dial.answered("r", "medium", choose(dial, 0.2, 10.0), took_s=0.4)
    dial.answered("r", "medium", choose(dial, None, 10.0), took_s=40.0)
    dial.answered("r", "large", choose(dial, 1.0), took_s=0.2)
    assert dial.totals == {
        ("latency", "r", "small", "within"): 1,
        ("cost", "r", "small", "over"): 1,
        ("latency", "r", "medium", "late"): 1,
        ("cost", "r", "medium", "within"): 2,
        ("latency", "r", "large", "within"): 1,
    }


def test_answers_without_a_latency_budget_teach_nothing_of_latency() -> None:
    dial = BudgetDial(Known(units=UNITS, large=0.1))
    for _ in range(100):
        dial.answered("r", "large", choose(dial, None, 30.0), took_s=10.0)
    assert choose(dial, 0.1).call.model_name == "large"


def test_one_that_seems_too_dear_is_tried_and_asked_again_once_it_has_become_cheaper() -> None:
    known = Known(units=UNITS)
    dial = BudgetDial(known)
    tries = [choose(dial, None, 20.0).call.model_name == "large" for _ in range(52)]
    assert (sum(tries), tries[25], tries[51]) == (2, True, True)
    known.units = UNITS | {"large": 15.0}
    assert all(choose(dial, None, 20.0).call.model_name == "large" for _ in range(10))


def test_one_is_tried_the_less_the_farther_it_is_beyond_either_budget() -> None:
    dial = BudgetDial(Known(units=UNITS | {"large": 320.0}, large=0.2))
    tries = [choose(dial, 0.1, 10.0).call.model_name == "large" for _ in range(51)]
    assert (sum(tries), tries[-1]) == (1, True)


def test_one_whose_table_says_that_it_is_too_dear_is_never_tried() -> None:
    dial = BudgetDial(Known(units=UNITS, by_tables=True, large=0.01))
    assert all(choose(dial, budget_s, 20.0).call.model_name != "large" for budget_s in (None, 0.001) for _ in range(1_000))


@pytest.mark.parametrize(
    ("model", "expected"),
    [("by_table", Expected(0.5, 7.0, 7.0)), ("by_statistics", Expected(0.5, 40.0)), ("unknown", Expected(0.5, None))],
)
def test_what_a_request_of_its_size_costs_is_what_admission_expects(model: str, expected: Expected) -> None:
    costs = FakeCosts()
    costs.counted = {"by_statistics": 40.0, "unknown": None}
    forecast = AdmissionForecast(governance(costs=costs), ModelNames(Servers(None, ("triton",))), lambda _: 0.5)
    assert forecast.expected(InferCall(model, "", "", (Tensor("X", "FP32", (7, 4)),))) == expected
