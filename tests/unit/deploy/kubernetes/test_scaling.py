"""The autoscaling components, replayed: the gateway's own counters of a pool under a load, the rule's formula, and the
HPA's published algorithm with the manifest's numbers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import pytest

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet, ModelFacts, Replica, Server
from control_plane.fleet.domain.placement.offered_work import OfferedWork, Requests
from control_plane.fleet.simulation import capacity
from control_plane.fleet.simulation.capacity import autoscaled_servers
from control_plane.fleet.simulation.workload import ModelCost, Request, Workload
from control_plane.models.domain.description import ModelSpec
from tests.unit.deploy.kubernetes.autoscaler import PERIOD_S, Autoscaler, rate
from tests.unit.deploy.rendered import Case, named, of_kind, render

KEDA = named(render(Case("gpu", ("monitoring", "keda"))), "ScaledObject", "triton")["spec"]
HPA = named(render(Case("gpu-shared", ("monitoring", "hpa"))), "HorizontalPodAutoscaler", "triton")["spec"]
SERVICE_S = 0.1


def rule() -> tuple[float, float, float]:
    """(window in seconds, utilisation aimed at, seconds in which what is pending is to be worked off)."""
    groups = named(render(Case("gpu", ("monitoring", "keda"))), "PrometheusRule", "tidegate")["spec"]["groups"]
    (text,) = [each["expr"] for group in groups for each in group["rules"] if each.get("record") == "tidegate_needed_servers"]
    found = re.fullmatch(
        r"sum by \(namespace, pool\) \(rate\(tidegate_fleet_offered_seconds_total\[(\d+)s\]\)\) / ([\d.]+) "
        r"\+ max by \(namespace, pool\) \(tidegate_fleet_pending_seconds\) / (\d+)",
        text,
    )
    assert found, text
    return float(found[1]), float(found[2]), float(found[3])


def behavior_of(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = spec.get("behavior") or spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    return found


def replay(
    spec: Mapping[str, Any], load: Callable[[float], float], *, seconds: float, servers: int, lost: tuple[float, float] = (0, 0)
) -> list[tuple[float, int]]:
    """(when, replicas) at each of the autoscaler's looks; `load` is the servers' worth of work that is asked for.

    A pool serves 1 s of work a second and server, and sheds what does not fit. A pod serves a minute after it is asked for.
    """
    window_s, aimed, work_off_s = rule()
    chance, work, one = random.Random(7), OfferedWork(), pool()
    computed = shed = 0
    samples: list[tuple[float, float]] = []
    it = Autoscaler(behavior_of(spec), 1.0, spec.get("minReplicas", spec.get("minReplicaCount", 1)), 8)
    serving = [(0.0, servers)]
    seen: list[tuple[float, int]] = []
    for second in range(int(seconds)):
        arrived = sum(chance.random() < 0.1 for _ in range(round(10 * load(second) / SERVICE_S)))
        able = next(count for from_s, count in reversed(serving) if from_s <= second)
        room = round(able / SERVICE_S)
        computed, shed = computed + min(arrived, room), shed + max(0, arrived - room)
        if second % 10 == 0:
            work.count(Requests({"m": computed}, shed), one)
            samples.append((float(second), work.seconds[""]))
        if second % PERIOD_S == 0 and second >= window_s:
            pending_s = min(arrived, room) * SERVICE_S * SERVICE_S
            metric = rate(samples, second, window_s) / aimed + pending_s / work_off_s
            now = it.replicas(second, servers, None if lost[0] <= second < lost[1] else metric)
            if now != servers:
                serving.append((second + (60.0 if now > servers else 0.0), now))
            servers = now
            seen.append((float(second), servers))
    return seen


def pool() -> Fleet:
    made = Fleet()
    made.add_server(Server("s", 1000))
    made.models["m"] = ModelFacts(ModelSpec("m"), 40, load_s=1.0, service_s=SERVICE_S)
    made.put_replica(made.servers["s"], Replica("m", ModelState.READY, 40, 0.0))
    return made


def changes(seen: list[tuple[float, int]]) -> int:
    return sum(one[1] != two[1] for one, two in pairwise(seen))


every_spec = pytest.mark.parametrize("spec", [KEDA, HPA], ids=["keda", "hpa"])


@every_spec
@pytest.mark.parametrize("load", [0.5, 1.3, 2.0, 3.3])
def test_a_steady_load_changes_nothing_more_than_once_in_ten_minutes(spec: Mapping[str, Any], load: float) -> None:
    seen = replay(spec, lambda _: load, seconds=2400, servers=round(load / 0.7 + 0.5))
    assert changes(seen) <= 4
    settled = [each for each in seen if each[0] >= 600]
    assert changes(settled) <= 1
    assert settled[-1][1] >= load


def test_tidegate_simulate_knows_the_rule() -> None:
    window_s, aimed, _ = rule()
    assert (window_s, aimed, PERIOD_S) == (capacity.WINDOW_S, capacity.UTILISATION, capacity.PERIOD_S)
    for spec in (KEDA, HPA):
        assert behavior_of(spec)["scaleDown"]["stabilizationWindowSeconds"] == capacity.STABLE_S


@every_spec
@pytest.mark.parametrize("load", [0.5, 1.3, 2.0, 3.3])
def test_tidegate_simulate_predicts_what_it_settles_at(spec: Mapping[str, Any], load: float) -> None:
    trace = [Request(at_s, "m", SERVICE_S) for at_s in drawn(load, 1200.0)]
    looks = sorted(autoscaled_servers(Workload(trace, {"m": ModelCost(1, 1.0)}), 1))
    predicted = looks[len(looks) // 2]
    seen = replay(spec, lambda _: load, seconds=2400, servers=1)
    assert abs(seen[-1][1] - predicted) <= 1, "the autoscaler does not move within a tenth of its target"


def drawn(load: float, length_s: float) -> list[float]:
    """When requests come that ask for so many servers' worth of work."""
    chance, at_s, found = random.Random(11), 0.0, []
    while (at_s := at_s + chance.expovariate(load / SERVICE_S)) < length_s:
        found.append(at_s)
    return found


@every_spec
def test_a_step_to_four_times_the_load_is_met_within_two_periods(spec: Mapping[str, Any]) -> None:
    step_s = 600
    seen = replay(spec, lambda now_s: 1.0 if now_s < step_s else 4.0, seconds=1200, servers=2)
    by_then = dict(seen)
    assert by_then[step_s] <= 2
    # A full server looks the same however many stand before it: it takes those that were turned away to see it. A pod
    # takes a minute to serve, so what follows the decision does not help it.
    two_periods_on = by_then[step_s + 2 * PERIOD_S]
    assert two_periods_on == pytest.approx(4.0 / 0.7, abs=1.0)
    assert two_periods_on >= 5
    assert max(by_then.values()) <= 7


@every_spec
def test_while_the_metric_is_lost_for_ten_minutes_nothing_is_scaled_in(spec: Mapping[str, Any]) -> None:
    seen = replay(spec, lambda _: 3.0, seconds=2400, servers=5, lost=(600, 1200))
    during = [count for at_s, count in seen if 600 <= at_s < 1260]
    assert min(during) >= dict(seen)[585]


@every_spec
def test_after_a_spike_it_goes_down_slowly(spec: Mapping[str, Any]) -> None:
    seen = replay(spec, lambda now_s: 4.0 if now_s < 600 else 0.5, seconds=3000, servers=6)
    assert dict(seen)[1185] >= 5, "a second spike within ten minutes finds the servers there"
    assert seen[-1][1] == 1
    downs = [one[1] - two[1] for one, two in pairwise(seen) if two[1] < one[1]]
    assert set(downs) == {1}


def test_kedas_traps_are_avoided() -> None:
    (trigger,) = KEDA["triggers"]
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert (trigger["metricType"], trigger["metadata"]["threshold"]) == ("AverageValue", "1")
    assert KEDA["fallback"]["behavior"] == "currentReplicasIfHigher"
    assert KEDA["minReplicaCount"] >= 1
    assert KEDA["maxReplicaCount"] >= KEDA["fallback"]["replicas"] >= KEDA["minReplicaCount"]
    assert "tidegate_needed_servers" in trigger["metadata"]["query"]


@pytest.mark.parametrize("case", [Case("gpu", ("monitoring", "keda")), Case("gpu-shared", ("monitoring", "hpa"))], ids=str)
def test_replicas_are_left_to_the_autoscaler(case: Case) -> None:
    objects = render(case)
    (scaler,) = of_kind(objects, "ScaledObject", "HorizontalPodAutoscaler")
    target = scaler["spec"]["scaleTargetRef"]["name"]
    assert "replicas" not in named(objects, "Deployment", target)["spec"]
    assert named(objects, "Deployment", "gateway")["spec"]["replicas"] == 2
