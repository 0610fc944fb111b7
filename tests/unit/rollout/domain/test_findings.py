from __future__ import annotations

import random
from dataclasses import replace

import pytest

from control_plane.objects.domain.rollout import Rollout
from control_plane.rollout.domain.findings import FAULTS, GATES, SLOW, Sums, added, later
from control_plane.rollout.domain.gate import Gate
from tests.fakes.rollout_steps import steps_of

ROLLOUT = Rollout("r", "0" * 32, "v2", "v1", steps_of([1, 50], samples=100, min_s=1.0))
FIRST, SECOND = 1, 2
"""Stages of the first two steps; the shadow is stage 0."""


def sums(*blocks: tuple[int, int, int, int], step: int = FIRST, step_samples: int = 0) -> Sums:
    gate = Gate()
    for block in blocks:
        gate.add_block(*block)
    return Sums(step, step_samples, {FAULTS: {0: gate.sums}})


def test_of_the_same_blocks_it_says_the_same_whoever_has_judged_them() -> None:
    drawn = random.Random(1)
    blocks = [(8, drawn.randint(0, 4), 40, drawn.randint(0, 4)) for _ in range(30)]
    alone = added([sums(*blocks)], ROLLOUT).gates[FAULTS].whole
    parts = [sums(*blocks[first::3]) for first in range(3)]
    together = added(parts, ROLLOUT).gates[FAULTS].whole
    assert (together.canary, together.canary_bad, together.stable, together.stable_bad) == (
        alone.canary,
        alone.canary_bad,
        alone.stable,
        alone.stable_bad,
    )
    assert together.log_evidence == pytest.approx(alone.log_evidence)
    assert alone.log_evidence != 0.0


def test_what_none_sees_alone_all_see_together() -> None:
    parts = [sums((8, 2, 40, 0)) for _ in range(4)]
    assert added(parts[:1], ROLLOUT).failed == ""
    together = added(parts, ROLLOUT)
    assert (together.failed, together.why) == (FAULTS, "faults: 8 of 32 requests, stable 0 of 160")


def test_gateways_of_different_speed_are_no_versions_of_different_speed() -> None:
    """One serves mostly the canary, and all of its answers are slow; of the other's none is."""
    parts = [sums(*[(20, 20, 4, 4)] * 20), sums(*[(4, 0, 20, 0)] * 20)]
    found = added(parts, ROLLOUT)
    assert (found.failed, found.gates[FAULTS].whole.canary_bad, found.gates[FAULTS].whole.stable_bad) == ("", 400, 80)


def test_samples_count_for_their_step_and_evidence_for_all() -> None:
    parts = [sums((8, 1, 8, 1), step=FIRST, step_samples=50), sums((8, 1, 8, 1), step=SECOND, step_samples=7)]
    found = added(parts, replace(ROLLOUT, step=1))
    assert (found.step_samples, found.gates[FAULTS].whole.canary) == (7, 16)


def test_a_process_may_know_fewer_gates() -> None:
    found = added([sums((8, 1, 8, 1))], ROLLOUT)
    assert [each.name for each in found.statuses] == list(GATES)
    assert found.gates[SLOW].whole.canary == 0
    assert added([], ROLLOUT).step_samples == 0


def test_of_two_copies_the_later_one_counts_in_whichever_order_they_come() -> None:
    old, new = sums((8, 1, 8, 1), step_samples=8), sums((8, 1, 8, 1), (8, 0, 8, 0), step_samples=16)
    beyond = Sums(SECOND, 0, new.gates)
    assert later(None, old) is old
    assert later(old, new) is later(new, old) is new
    assert later(new, beyond) is later(beyond, new) is beyond
