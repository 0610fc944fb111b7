from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from control_plane.objects.domain.rollout import Phase
from control_plane.objects.domain.route import Route
from control_plane.rollout.adapters.metrics import RolloutMetrics
from tests.unit.rollout.rollout_bench import SPEC, Process, process, world

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("known_thresholds")]

WEIGHT = 'weight{model="v2",route="r"}'


def page(one: Process, *, most: int = 10) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(RolloutMetrics(lambda: one.rollouts.latest(most)))
    return dict(_samples(generate_latest(registry).decode()))


def _samples(text: str) -> Iterator[tuple[str, float]]:
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            yield name.removeprefix("tidegate_rollout_"), float(value)


async def test_without_a_rollout_there_is_nothing() -> None:
    assert page(process()) == {}


async def test_weight_phase_and_why_it_stays_at_its_step() -> None:
    one = process()
    await one.start()
    await one.tick(count=5)
    found = page(one)
    assert found[WEIGHT] == 0.01
    assert found['phase{model="v2",phase="canary",route="r"}'] == 1.0
    assert found['held{model="v2",reason="samples",route="r"}'] == 1.0
    await one.tick(count=50)
    assert page(one)['held{model="v2",reason="time",route="r"}'] == 1.0
    await one.tick(after_s=30.0)
    assert page(one)[WEIGHT] == 0.1


async def test_evidence_grows_to_1_and_what_was_rolled_back_says_so_and_waits_for_nothing() -> None:
    one = process()
    await one.start()
    await one.tick(count=4, faults=True)
    one.clock[0] += 1.0
    await one.rollouts.tick()
    before = page(one)['gate_evidence{gate="faults",model="v2",route="r"}']
    assert 0.0 < before < 1.0
    await one.tick(count=50, faults=True)
    found = page(one)
    assert found['phase{model="v2",phase="rolled_back",route="r"}'] == 1.0
    assert found[WEIGHT] == 0.0
    assert not any(name.startswith(("held", "gate_evidence")) for name in found)


async def test_of_many_those_that_are_under_way_are_shown_first_then_the_last() -> None:
    one = process(state=world(*(Route(name, "v1") for name in ("r", "s", "t"))))
    begun = await one.start(SPEC)
    ended = replace(begun, phase=Phase.ABORTED)
    one.known.rollouts = {"s": replace(ended, route="s", entered_s=1.0), "t": replace(ended, route="t", entered_s=2.0), "r": begun}
    assert [each.route for each, _ in one.rollouts.latest(2)] == ["r", "t"]
    assert {name for name in page(one, most=2) if name.startswith("weight")} == {WEIGHT, WEIGHT.replace('"r"', '"t"')}
