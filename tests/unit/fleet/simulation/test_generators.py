"""Generated traces: their shapes, and that the same seed gives the same trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest

from control_plane.fleet.simulation.generators import drifting, faster, flash_crowd, model_names, periodic, poisson, zipf
from control_plane.fleet.simulation.workload import Request

NAMES = model_names(10)


def test_names_sort_by_number() -> None:
    assert model_names(11)[::5] == ["model-00", "model-05", "model-10"]
    assert model_names(1) == ["model-0"]
    assert model_names(0) == []


@pytest.mark.parametrize("draw", [zipf, drifting, periodic])
def test_the_seed_says_all(draw: Callable[..., list[str]]) -> None:
    assert draw(Random(1), NAMES, 200, 1.0) == draw(Random(1), NAMES, 200, 1.0) != draw(Random(2), NAMES, 200, 1.0)
    assert len(draw(Random(1), NAMES, 200, 1.0)) == 200
    assert draw(Random(1), ["only"], 3, 1.0) == ["only"] * 3 or draw is periodic


def test_zipf() -> None:
    counts = [count for _, count in Counter(zipf(Random(3), NAMES, 30_000, 1.0)).most_common()]
    assert counts[0] / counts[1] == pytest.approx(2, rel=0.1)
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.2)
    assert set(Counter(zipf(Random(3), NAMES, 30_000, 0.0)).values()) <= set(range(2_700, 3_300))


def test_drifting_has_another_favourite_all_the_time() -> None:
    models = drifting(Random(3), NAMES, 20_000, 2.0)
    favourites = [Counter(models[start : start + 2000]).most_common(1)[0][0] for start in range(0, 20_000, 2000)]
    assert sorted(favourites) == NAMES


def test_periodic_has_days_and_nights() -> None:
    models = periodic(Random(3), NAMES, 800, 1.0)
    for start in range(0, 800, 100):
        is_day = start % 200 == 0
        assert set(models[start : start + 100]) <= set(NAMES[:5] if is_day else NAMES[5:])


def test_poisson() -> None:
    requests = poisson(Random(3), ["a", "b"] * 5000, 20.0, 0.5)
    assert requests[-1].at_s == pytest.approx(500, rel=0.05)
    assert [request.model for request in requests[:3]] == ["a", "b", "a"]
    gaps = [after.at_s - before.at_s for before, after in pairwise(requests)]
    assert min(gaps) >= 0
    # A part 1 / e of exponential gaps is longer than their mean.
    assert sum(gap > 0.05 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)


def test_faster_for_a_while() -> None:
    requests = [Request(float(second), "a", 1.0) for second in range(61)]
    times = [request.at_s for request in faster(requests, 10, 4, 10)]
    assert times[:11] == [float(second) for second in range(11)]
    assert times[11] == pytest.approx(10.1)
    assert times[50] == pytest.approx(14)
    assert times[51] == pytest.approx(15), "then as before"


def test_a_flash_crowd_comes_beside_the_others() -> None:
    requests = [Request(float(second), "a", 1.0) for second in range(100)]
    both = flash_crowd(Random(3), requests, Request(20.0, "crowd", 2.0), 30.0, 10.0)
    crowd = [request for request in both if request.model == "crowd"]
    assert sorted(both) == both
    assert len(both) - len(crowd) == 100
    assert len(crowd) == pytest.approx(300, rel=0.15)
    assert 20 < crowd[0].at_s < crowd[-1].at_s < 50
    assert {request.service_s for request in crowd} == {2.0}
