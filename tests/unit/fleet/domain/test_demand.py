from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.fleet.domain.demand import count_uses
from control_plane.fleet.domain.fleet import ModelFacts
from control_plane.models.domain.description import ModelSpec

NEVER = ModelFacts(ModelSpec("never"), 1, 1.0, 0.01)


def used(*times_s: float) -> ModelFacts:
    facts = ModelFacts(ModelSpec("m"), 1, 1.0, 0.01)
    for at_s in times_s:
        count_uses(facts, at_s)
    return facts


def steadily(per_s: float, until_s: float) -> ModelFacts:
    return used(*(number / per_s for number in range(1, int(until_s * per_s) + 1)))


@pytest.mark.parametrize("per_s", [0.5, 2.0, 20.0])
def test_rates_are_what_comes_steadily(per_s: float) -> None:
    facts = steadily(per_s, 300.0)
    assert facts.rate_fast == pytest.approx(per_s, rel=0.05)
    assert facts.demand(300.0) == pytest.approx(per_s * 0.01, rel=0.05)


def test_the_fast_rate_forgets_sooner() -> None:
    facts = steadily(2.0, 300.0)
    count_uses(facts, 400.0)
    assert facts.rate_fast < 0.2
    assert facts.rate_slow > 0.4


def test_many_at_once_are_as_many_one_by_one() -> None:
    one_by_one, at_once = used(10.0, 60.0, 60.0, 60.0), used(10.0)
    count_uses(at_once, 60.0, 3)
    assert at_once.rate_fast == pytest.approx(one_by_one.rate_fast)
    assert at_once.rate_slow == pytest.approx(one_by_one.rate_slow)


def test_demand_fades_while_nobody_asks() -> None:
    facts = steadily(2.0, 300.0)
    assert facts.demand(300.0 + 90.0) == pytest.approx(facts.demand(300.0) / 20, rel=0.01)


@pytest.mark.parametrize(
    ("likelier", "other"),
    [
        pytest.param(used(90.0), used(10.0), id="of two used once the one used later"),
        pytest.param(used(50.0, 60.0, 70.0, 80.0), used(90.0), id="used often, a little longer ago"),
        pytest.param(used(99.0), used(1.0, 2.0, 3.0), id="what was used often long ago is over"),
        pytest.param(used(10.0), NEVER, id="used at all"),
    ],
)
def test_which_is_likelier_to_be_used(likelier: ModelFacts, other: ModelFacts) -> None:
    assert likelier.uses_per_s(100.0) > other.uses_per_s(100.0)


def test_what_was_never_used_is_not_expected() -> None:
    assert NEVER.uses_per_s(100.0) == 0.0


def test_a_clock_that_stands_still_is_no_matter() -> None:
    facts = used(5.0, 5.0, 5.0)
    assert facts.rate_fast == pytest.approx(3 / 30)
    assert 0.0 < facts.uses_per_s(5.0) < inf


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 1e6))
def test_the_longer_it_lies_idle_the_less_it_is_expected(times_s: list[float], idle_s: float) -> None:
    facts = used(*sorted(times_s))
    last_s = max(times_s)
    sooner, later = (facts.uses_per_s(last_s + each) for each in (idle_s, 2 * idle_s))
    assert 0.0 <= later <= sooner
