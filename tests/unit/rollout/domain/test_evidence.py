from __future__ import annotations

import random
from dataclasses import replace

import pytest

from control_plane.inference.domain.observation import Observation, Pair
from control_plane.objects.domain.rollout import Agreement, Rollout
from control_plane.rollout.domain.evidence import THRESHOLD_SAMPLES, Evidence
from control_plane.rollout.domain.findings import DISAGREEMENT, FAULTS, GATES, SLOW, SLOWER
from tests.fakes.rollout_steps import steps_of

ROLLOUT = Rollout("r", "0" * 32, "v2", "v1", steps_of([1, 50], samples=100, min_s=1.0))


def evidence(agreement: Agreement | None = None) -> Evidence:
    return Evidence(replace(ROLLOUT, agreement=agreement))


def pair(digest: int, *, is_fault: bool = False, stable_is_fault: bool = False, differs: bool | None = None) -> Observation:
    return Observation("r", "id", False, digest, is_fault, 0.01, pair=Pair(stable_is_fault, differs))


def seen(digest: int, *, is_stable: bool, is_fault: bool = False, took_s: float = 0.01) -> Observation:
    return Observation("r", "id", is_stable, digest, is_fault, took_s)


def fed(count: int, *, canary_times: float = 1.0, canary_faults: float = 0.0, tail_times: float = 1.0, seed: int = 1) -> Evidence:
    drawn, all_of_it = random.Random(seed), evidence()
    for number in range(count):
        is_stable = drawn.random() >= 0.3
        took_s = 0.01 * drawn.lognormvariate(0, 0.3)
        if not is_stable:
            took_s *= canary_times * (tail_times if drawn.random() < 0.05 else 1.0)
        is_fault = not is_stable and drawn.random() < canary_faults
        all_of_it.add(seen(number, is_stable=is_stable, is_fault=is_fault, took_s=took_s))
        if number % 100 == 99:
            all_of_it.tick()
    return all_of_it


@pytest.mark.parametrize(
    ("how", "failed"),
    [
        pytest.param({}, "", id="alike"),
        pytest.param({"canary_times": 1.05}, "", id="slower by less than is told"),
        pytest.param({"canary_times": 0.5}, "", id="quicker"),
        pytest.param({"canary_faults": 0.2}, FAULTS, id="fails"),
        pytest.param({"canary_times": 1.5}, SLOWER, id="slower throughout"),
        pytest.param({"tail_times": 10.0}, SLOW, id="slower at times"),
    ],
)
def test_which_gate_fails(how: dict[str, float], failed: str) -> None:
    assert fed(6_000, **how).findings.failed == failed


def test_a_quick_model_that_costs_a_little_more_for_being_asked_rarely_is_not_slower() -> None:
    """A copy of a model of 0.6 ms at five percent of the requests: a fifth of a millisecond more, each time."""
    drawn, all_of_it = random.Random(5), evidence()
    for number in range(20_000):
        is_stable = drawn.random() >= 0.05
        took_s = 0.0006 * drawn.lognormvariate(0, 0.1) + (0.0 if is_stable else 0.0002)
        all_of_it.add(seen(number, is_stable=is_stable, took_s=took_s))
        if number % 100 == 99:
            all_of_it.tick()
    assert all_of_it.findings.failed == ""


def test_a_quick_model_that_takes_milliseconds_more_is_slower() -> None:
    all_of_it = evidence()
    for number in range(3_000):
        is_stable = number % 5 > 0
        all_of_it.add(seen(number, is_stable=is_stable, took_s=0.0006 if is_stable else 0.0036))
        all_of_it.tick()
    assert all_of_it.findings.failed == SLOWER


def test_a_unit_counts_once_however_often_it_asks() -> None:
    """One tenant who always fails, and sends most of the requests: it sticks to the canary."""
    all_of_it = evidence()
    for number in range(5_000):
        all_of_it.add(seen(7, is_stable=False, is_fault=True))
        all_of_it.add(seen(1_000 + number, is_stable=number % 2 == 0))
        all_of_it.tick()
    assert all_of_it.findings.failed == ""
    assert all_of_it.gates[FAULTS].whole.canary_bad == 1


def test_answers_by_which_thresholds_are_set_are_not_judged_by_them() -> None:
    all_of_it = evidence()
    for number in range(THRESHOLD_SAMPLES):
        assert all_of_it.median_s is None
        all_of_it.add(seen(number, is_stable=True, took_s=number / 1000))
    assert (all_of_it.median_s, all_of_it.p99_s) == (0.15, 0.297)
    assert [all_of_it.gates[name].whole.stable for name in GATES] == [0, 0, 0]


def test_samples_of_a_step_and_the_time_that_is_left() -> None:
    all_of_it = evidence()
    assert all_of_it.findings.left_s(100, 5.0) is None
    for number in range(THRESHOLD_SAMPLES):
        all_of_it.add(seen(10_000 + number, is_stable=True))
    for number in range(50):
        all_of_it.add(seen(number, is_stable=number % 2 == 0))
    findings = all_of_it.findings
    assert (findings.step_samples, findings.left_s(100, 10.0), findings.left_s(25, 10.0)) == (25, pytest.approx(30.0), 0.0)
    all_of_it.begin_step()
    assert (all_of_it.findings.step_samples, all_of_it.gates[FAULTS].whole.canary) == (0, 25)


def test_while_nobody_knows_what_is_slow_no_step_has_samples() -> None:
    """As where the present model's answers come from its cache, and the next one's are computed."""
    all_of_it = evidence()
    for number in range(THRESHOLD_SAMPLES - 1):
        all_of_it.add(seen(number, is_stable=True))
        all_of_it.add(seen(10_000 + number, is_stable=False, took_s=1.0))
    assert (all_of_it.findings.step_samples, all_of_it.findings.failed) == (0, "")
    all_of_it.add(seen(9_999, is_stable=True))
    all_of_it.add(seen(10_000, is_stable=False, took_s=1.0))
    assert all_of_it.findings.step_samples == 1


def test_what_is_remembered_is_bounded_and_both_arms_lose_alike() -> None:
    drawn, all_of_it = random.Random(3), evidence()
    for _ in range(150_000):
        digest = drawn.getrandbits(64)
        all_of_it.add(seen(digest, is_stable=digest % 2 == 0))
    assert len(all_of_it._units) <= 100_001
    gate = all_of_it.gates[FAULTS].whole
    assert abs(gate.canary - gate.stable) < 0.05 * gate.stable


def test_of_few_callers_who_stick_times_are_judged_once_each_from_when_it_is_known_what_is_slow() -> None:
    all_of_it = evidence()
    for _ in range(20):
        for caller in range(60):
            all_of_it.add(seen(caller, is_stable=caller % 2 == 0, took_s=0.01 if caller % 2 == 0 else 0.1))
        all_of_it.tick()
    gate = all_of_it.gates[SLOWER].whole
    assert (gate.canary, gate.canary_bad, gate.stable, gate.stable_bad) == (30, 30, 30, 0)
    assert all_of_it.findings.failed == SLOWER


# Copied requests


def test_copies_are_judged_in_pairs_and_what_both_fail_says_nothing() -> None:
    all_of_it = evidence()
    for number in range(400):
        all_of_it.add(pair(number, is_fault=True, stable_is_fault=True))
    assert (all_of_it.findings.failed, all_of_it.gates[FAULTS].log_evidence) == ("", 0.0)
    for number in range(400, 420):
        all_of_it.add(pair(number, is_fault=True))
    assert all_of_it.findings.why == "faults: 420 of 420 requests, stable 400 of 420"
    assert all_of_it.findings.step_samples == 420


def test_of_equal_requests_one_copy_counts() -> None:
    all_of_it = evidence(Agreement("exact"))
    for _ in range(1000):
        all_of_it.add(pair(7, is_fault=True))
        all_of_it.add(pair(8, differs=True))
    assert (all_of_it.findings.failed, all_of_it.findings.step_samples) == ("", 2)


def test_copies_set_no_thresholds_and_their_time_is_not_judged() -> None:
    all_of_it = evidence()
    for number in range(2 * THRESHOLD_SAMPLES):
        all_of_it.add(pair(number))
    assert (all_of_it.median_s, all_of_it.gates[SLOWER].whole.canary) == (None, 0)


def differing(part: float, count: int, *, seed: int) -> Evidence:
    drawn, all_of_it = random.Random(seed), evidence(Agreement("exact", may_differ=0.01))
    for number in range(count):
        all_of_it.add(pair(number, differs=drawn.random() < part))
        if all_of_it.findings.failed:
            break
    return all_of_it


def test_more_answers_that_differ_than_may_fail_the_gate_and_as_many_as_may_do_not() -> None:
    wrong = [differing(0.05, 5_000, seed=seed) for seed in range(10)]
    assert all(each.findings.failed == DISAGREEMENT for each in wrong)
    assert sorted(each.findings.step_samples for each in wrong)[5] < 500
    assert differing(1.0, 100, seed=1).findings.step_samples <= 5, "an embedding of another space is found at once"
    # Looked at after each sample: 0.01 shared by four gates allows one of 400.
    assert sum(bool(differing(0.01, 1_000, seed=seed).findings.failed) for seed in range(40)) <= 1
    assert differing(0.05, 500, seed=1).findings.why.endswith("answers differ from stable's")


def test_what_cannot_be_compared_is_a_sample_without_a_verdict() -> None:
    all_of_it = evidence(Agreement("another-space"))
    for number in range(50):
        all_of_it.add(pair(number))
    assert (all_of_it.findings.step_samples, all_of_it.gates[DISAGREEMENT].whole.canary) == (50, 0)
    assert DISAGREEMENT not in evidence().gates
