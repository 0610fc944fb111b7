from __future__ import annotations

import random
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.inference.domain.assignment import target_of, unit_digest
from control_plane.objects.domain.route import WHOLE, Route, Target

DRAWS = 1_000_000
UNITS = st.lists(st.binary(min_size=1, max_size=20), min_size=50, max_size=50, unique=True)


def route(*weights: int) -> Route:
    return Route("r", "stable", targets=tuple(Target(f"m{number}", weight) for number, weight in enumerate(weights)))


def model_of(route: Route, digest: int) -> str:
    target = target_of(route, digest)
    return route.model if target is None else target.model


@pytest.fixture(scope="module")
def places() -> list[int]:
    """How many of a million units stand at each place."""
    counts = [0] * WHOLE
    for number in range(DRAWS):
        counts[unit_digest("salt", b"%d" % number) % WHOLE] += 1
    return counts


def test_a_million_draws_are_within_four_sigma_through_twenty_changes_of_weight(places: list[int]) -> None:
    chosen = random.Random(7)
    for weights in [(1,), (100,), (5000,), (9999,), (WHOLE,), *((chosen.randrange(1, 5000), chosen.randrange(1, 5000)) for _ in range(15))]:
        split = route(*weights)
        got = dict.fromkeys(split.models, 0)
        for place, count in enumerate(places):
            got[model_of(split, place)] += count
        for target in split.targets:
            share = target.weight / WHOLE
            assert abs(got[target.model] - DRAWS * share) <= 4 * sqrt(DRAWS * share * (1 - share)), (weights, got)


@given(UNITS, st.lists(st.integers(0, WHOLE), min_size=2, max_size=20))
def test_widening_moves_units_only_onto_the_target(units: list[bytes], weights: list[int]) -> None:
    digests = [unit_digest("r", unit) for unit in units]
    for less, more in zip(sorted(weights), sorted(weights)[1:], strict=False):
        for digest in digests:
            if model_of(route(less), digest) == "m0":
                assert model_of(route(more), digest) == "m0"


@given(UNITS, st.integers(0, 4000), st.integers(0, 4000), st.integers(0, 2000))
def test_of_several_targets_one_that_is_widened_sends_nobody_back_to_the_stable_one(
    units: list[bytes], first: int, second: int, more: int
) -> None:
    for digest in (unit_digest("r", unit) for unit in units):
        before, after = (model_of(route(weight, second), digest) for weight in (first, first + more))
        assert before == "stable" or after != "stable"
        assert before != "m0" or after == "m0"


def test_weights_of_nothing_and_of_everything() -> None:
    assert {model_of(route(0), unit_digest("r", b"%d" % number)) for number in range(1000)} == {"stable"}
    assert {model_of(route(WHOLE), unit_digest("r", b"%d" % number)) for number in range(1000)} == {"m0"}


def test_another_salt_draws_anew() -> None:
    split = route(5000)
    both = [
        (model_of(split, unit_digest("one", unit)), model_of(split, unit_digest("two", unit))) for unit in map(b"%d".__mod__, range(4000))
    ]
    moved = sum(one != other for one, other in both)
    assert 1800 < moved < 2200


def test_parts_cannot_be_shifted_into_each_other() -> None:
    assert unit_digest("s", b"ab", b"c") != unit_digest("s", b"a", b"bc")
    assert unit_digest("s", b"ab") != unit_digest("s\0", b"ab")
