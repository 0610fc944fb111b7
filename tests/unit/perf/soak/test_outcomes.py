"""What is made of the requests of a soak: percentiles of answers only, windows without gaps, and when a spike is over."""

from __future__ import annotations

import math

import pytest

from perf.soak.outcomes import Journal, Outcome, Requests, normal_after_s, windows


def requests(*each: tuple[float, float, Outcome]) -> Requests:
    """When due, milliseconds until the end, and what became of it."""
    journal = Journal()
    for due_s, latency_ms, outcome in each:
        journal.add(due_s, due_s + 0.001, due_s + latency_ms / 1e3, outcome)
    return journal.closed()


def seconds(*latencies_ms: float) -> Requests:
    """One answer in each second."""
    return requests(*((at_s + 0.5, latency_ms, Outcome.ANSWERED) for at_s, latency_ms in enumerate(latencies_ms)))


def test_latencies_are_those_of_answers_and_what_is_late_is_not_in_time() -> None:
    found = requests(
        (0.0, 10.0, Outcome.ANSWERED), (0.1, 1500.0, Outcome.ANSWERED), (0.2, 1.0, Outcome.REFUSED), (0.3, 2000.0, Outcome.EXPIRED)
    )  # fmt: skip
    assert found.percentile_ms(0) == pytest.approx(10.0, rel=1e-4)
    assert found.percentile_ms(100) == pytest.approx(1500.0, rel=1e-4)
    assert found.refusal_ms(99) == pytest.approx(1.0, rel=1e-4)
    assert found.client_late_ms(99) == pytest.approx(1.0, rel=1e-4)
    assert (found.count(Outcome.ANSWERED), found.in_time(), found.count(Outcome.REFUSED, Outcome.EXPIRED)) == (2, 1, 2)
    assert math.isnan(requests((0.0, 1.0, Outcome.REFUSED)).percentile_ms(99))


def test_a_part_has_what_was_due_in_it() -> None:
    found = seconds(1.0, 2.0, 3.0)
    assert [len(found.due(*each)) for each in ((0.0, 0.5), (0.5, 1.5), (0.0, 9.0))] == [0, 1, 3]


def test_cold_models_are_told_apart() -> None:
    journal = Journal()
    journal.add(0.0, 0.0, 0.1, Outcome.ANSWERED)
    journal.add(0.0, 0.0, 5.0, Outcome.ANSWERED, is_cold=True)
    found = journal.closed()
    assert found.hot().percentile_ms(100) == pytest.approx(100.0, rel=1e-4)
    assert found.cold().percentile_ms(0) == pytest.approx(5000.0, rel=1e-4)


@pytest.mark.parametrize(
    ("to_s", "expected"),
    [
        pytest.param(180.0, [(0.0, 60.0), (60.0, 120.0), (120.0, 180.0)], id="whole minutes"),
        pytest.param(100.0, [(0.0, 50.0), (50.0, 100.0)], id="nearly two"),
        pytest.param(10.0, [(0.0, 10.0)], id="less than one"),
    ],
)
def test_windows_have_no_gaps(to_s: float, expected: list[tuple[float, float]]) -> None:
    assert windows(0.0, to_s, 60.0) == expected


@pytest.mark.parametrize(
    ("latencies_ms", "expected"),
    [
        pytest.param([9.0] * 6, 0.0, id="at once"),
        pytest.param([900.0, 400.0, 9.0, 9.0, 9.0, 9.0], 2.0, id="after two seconds"),
        pytest.param([900.0, 9.0, 900.0, 9.0, 9.0, 9.0], 3.0, id="one good second is not enough"),
        pytest.param([900.0] * 6, 6.0, id="never"),
    ],
)
def test_when_a_spike_is_over(latencies_ms: list[float], expected: float) -> None:
    found = normal_after_s(seconds(*latencies_ms), spike_ends_s=0.0, soak_ends_s=float(len(latencies_ms)), before_ms=5.0)
    assert found == expected
