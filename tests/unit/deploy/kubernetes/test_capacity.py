"""The component `gpu-fallback`: a second kind of GPU while the cloud has none of the first, and what says so."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from control_plane.fleet.domain.endpoint_slices import BUDGET_LABEL
from control_plane.settings import FleetSettings
from perf.servers.processes import program
from tests.dashboards import rule_groups
from tests.unit.deploy.kubernetes.network import table
from tests.unit.deploy.rendered import Case, containers, env, named, pod_spec, quantity, render

OBJECTS = render(Case("gpu", ("monitoring", "keda", "model-images", "gpu-fallback")))
FIRST, SECOND = (named(OBJECTS, "Deployment", name) for name in ("triton", "triton-fallback"))
SCALED = named(OBJECTS, "ScaledObject", "triton-fallback")["spec"]


def memory_bounds(deployment: Mapping[str, Any]) -> tuple[float, float]:
    """MiB of a GPU that its pods ask for: more than the first, less than the second."""
    terms = pod_spec(deployment)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    (rules,) = [term["matchExpressions"] for term in terms]
    found = {rule["operator"]: float(rule["values"][0]) for rule in rules if rule["key"] == "nvidia.com/gpu.memory"}
    return found["Gt"], found.get("Lt", float("inf"))


def test_what_runs_there_is_a_triton_with_all_that_other_components_gave_it() -> None:
    assert list(containers(SECOND)) == list(containers(FIRST))
    first, second = pod_spec(FIRST), pod_spec(SECOND)
    own = {"affinity", "topologySpreadConstraints"}
    assert {key: value for key, value in second.items() if key not in own} == {key: value for key, value in first.items() if key not in own}
    assert "models" in {each["name"] for each in second["volumes"]}


def test_it_takes_no_gpu_from_the_first_kind() -> None:
    assert memory_bounds(SECOND)[1] <= memory_bounds(FIRST)[0]
    assert memory_bounds(SECOND)[0] * 2**20 >= 0.95 * quantity(SECOND["metadata"]["annotations"]["tidegate.io/gpu-share"])


def test_no_selector_takes_in_the_others_pods() -> None:
    labels = {each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"].items() for each in (FIRST, SECOND)}
    for kind in ("Deployment", "Service", "PodDisruptionBudget"):
        for name in labels:
            selector = named(OBJECTS, kind, name)["spec"]["selector"]
            selector = selector.get("matchLabels", selector)
            assert [each for each in labels if selector.items() <= labels[each]] == [name], (kind, name)
    spec = pod_spec(SECOND)
    (near,) = spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    for each in (near["podAffinityTerm"], *spec["topologySpreadConstraints"]):
        assert each["labelSelector"]["matchLabels"].items() <= labels["triton-fallback"]


def test_gateways_follow_both_services_each_with_the_budget_of_its_gpu() -> None:
    (gateway,) = containers(named(OBJECTS, "Deployment", "gateway"))
    names = FleetSettings.model_validate({"triton_service": env(gateway)["TIDEGATE_TRITON_SERVICE"]}).triton_service.split(",")
    assert names == ["triton", "triton-fallback"]
    for name in names:
        share = quantity(named(OBJECTS, "Deployment", name)["metadata"]["annotations"]["tidegate.io/gpu-share"])
        budget = quantity(named(OBJECTS, "Service", name)["metadata"]["labels"][BUDGET_LABEL])
        assert 0.75 * share <= budget <= 0.9 * share
    assert named(OBJECTS, "Service", "triton-fallback")["spec"]["ports"] == named(OBJECTS, "Service", "triton")["spec"]["ports"]


def test_only_gateways_reach_it_and_it_reaches_nobody() -> None:
    lines = table(OBJECTS).splitlines()
    assert [line for line in lines if " -> triton-fallback:" in line] == [
        "gateway -> triton-fallback: 8000/TCP, 8001/TCP, 8002/TCP, 8500/TCP"
    ]
    assert not [line for line in lines if line.startswith("triton-fallback -> ")]


def test_keda_alone_says_how_many_and_begins_at_none() -> None:
    assert "replicas" not in SECOND["spec"]
    assert SCALED["minReplicaCount"] == 0
    (trigger,) = SCALED["triggers"]
    assert "tidegate_unscheduled_servers" in trigger["metadata"]["query"]
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert "fallback" not in SCALED, "without the metric it would start servers that nobody may need"


def test_it_stays_until_the_first_kind_serves() -> None:
    down = SCALED["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    starts_s = FIRST["spec"]["progressDeadlineSeconds"]
    assert min(SCALED["cooldownPeriod"], down["stabilizationWindowSeconds"]) >= starts_s


def judged(folder: Path, series: Sequence[tuple[str, str]], check: Mapping[str, Any]) -> str:
    """What promtool says of the rules with these series, one value a minute: nothing if the check holds."""
    path = program("promtool")
    if path is None:
        pytest.skip("promtool is missing: install prometheus")
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": list(rule_groups())}))
    case = {"interval": "1m", "input_series": [{"series": name, "values": values} for name, values in series], **check}
    (folder / "test.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "15s", "tests": [case]}))
    done = subprocess.run([path, "test", "rules", "test.yaml"], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def pod(name: str, namespace: str = "tidegate") -> str:
    return f'{{namespace="{namespace}", pod="{name}"}}'


WANTED = ('kube_deployment_spec_replicas{namespace="tidegate", deployment="triton"}', "2x40")
WAITS = [
    WANTED,
    (f"kube_pod_status_unschedulable{pod('triton-6d5f7c9b8d-abcde')}", "1x20 _x20"),
    (f"kube_pod_created{pod('triton-6d5f7c9b8d-abcde')}", "0x40"),
]
OTHERS = [
    WANTED,
    (f"kube_pod_status_unschedulable{pod('triton-fallback-6d5f7c9b8d-abcde')}", "1x40"),
    (f"kube_pod_created{pod('triton-fallback-6d5f7c9b8d-abcde')}", "0x40"),
    (f"kube_pod_status_unschedulable{pod('overflow-6d5f7c9b8d-abcde')}", "1x40"),
    (f"kube_pod_created{pod('overflow-6d5f7c9b8d-abcde')}", "0x40"),
]


@pytest.mark.parametrize(
    ("series", "at", "expected"),
    [
        pytest.param(WAITS, "4m", 0, id="not for long yet"),
        pytest.param(WAITS, "6m", 1, id="for five minutes"),
        pytest.param(WAITS, "30m", 0, id="it has found a node"),
        pytest.param(OTHERS, "30m", 0, id="other pods wait"),
        pytest.param([WANTED], "30m", 0, id="nobody waits"),
        pytest.param(WAITS[1:2], "30m", None, id="kube-state-metrics is away"),
    ],
)
def test_servers_count_as_unscheduled(tmp_path: Path, series: list[tuple[str, str]], at: str, expected: float | None) -> None:
    samples = [] if expected is None else [{"labels": 'tidegate_unscheduled_servers{namespace="tidegate"}', "value": expected}]
    check = {"promql_expr_test": [{"expr": "tidegate_unscheduled_servers", "eval_time": at, "exp_samples": samples}]}
    assert judged(tmp_path, series, check) == ""


@pytest.mark.parametrize(
    ("series", "at", "fires"),
    [
        pytest.param(WAITS, "9m", False, id="not for long yet"),
        pytest.param(WAITS, "15m", True, id="the first kind"),
        pytest.param(OTHERS, "15m", True, id="the second kind"),
        pytest.param(OTHERS[:1] + OTHERS[3:], "15m", False, id="room kept warm"),
    ],
)
def test_an_alert_tells_of_pods_without_a_node(tmp_path: Path, series: list[tuple[str, str]], at: str, fires: bool) -> None:
    summary = "1 pods of Tritons find no node with the GPU that they ask for."
    fired = [{"exp_labels": {"severity": "warning", "namespace": "tidegate"}, "exp_annotations": {"summary": summary}}]
    check = {"alert_rule_test": [{"alertname": "TidegateNoNode", "eval_time": at, "exp_alerts": fired if fires else []}]}
    assert judged(tmp_path, series, check) == ""
