"""Every manifest is what Kubernetes 1.33 to 1.37, and the projects whose resources it uses, accept."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.unit.deploy.rendered import CASES, KUBERNETES, Case, named, render, render_folder
from tests.unit.deploy.schemas import VERSIONS, faults


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid(version: str, case: Case) -> None:
    assert [fault for each in render(case) for fault in faults(version, each)] == []


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        pytest.param("Deployment", "gateway", {"replica": 2}, id="misspelt"),
        pytest.param("Deployment", "gateway", {"minReadySeconds": "5"}, id="a text for a number"),
        pytest.param("PodDisruptionBudget", "gateway", {"maxUnavailable": []}, id="wrong type"),
        pytest.param("HTTPRoute", "gateway", {"hostname": "x"}, id="misspelt, of the Gateway API"),
        pytest.param("CapacityBuffer", "triton", {"scalableRef": {"kind": "Deployment"}}, id="missing, of the cluster-autoscaler"),
        pytest.param("PodMonitor", "gateway", {"podMetricsEndpoints": []}, id="missing, of the Prometheus operator"),
    ],
)
def test_what_is_wrong_is_found(kind: str, name: str, change: dict[str, Any]) -> None:
    component = {"HTTPRoute": "gateway-api", "CapacityBuffer": "capacity-buffer"}.get(kind, "monitoring")
    right = named(render(Case("gpu" if kind == "CapacityBuffer" else "local", (component,))), kind, name)
    for version in VERSIONS:
        assert not faults(version, right)
        assert faults(version, {**right, "spec": {**right["spec"], **change}})


def test_alerts_say_whole_sentences() -> None:
    groups = named(render(Case("local", ("monitoring",))), "PrometheusRule", "tidegate")["spec"]["groups"]
    alerts = [each for group in groups for each in group["rules"] if "alert" in each]
    assert len(alerts) >= 7
    for each in alerts:
        assert each["annotations"].keys() == {"summary"}
        # A comma without quotes ends a value in {}, and kustomize drops the rest without a word.
        assert each["annotations"]["summary"].endswith("."), each["alert"]


def test_the_overlay_of_the_documents_is_valid_as_it_stands_there() -> None:
    written = (KUBERNETES.parents[1] / "docs" / "how-to" / "kubernetes.md").read_text()
    (mine,) = [block for block in re.findall(r"```yaml\n(.*?)```", written, re.DOTALL) if "kind: Kustomization" in block]
    objects = render_folder(mine)
    assert {"CustomResourceDefinition", "ScaledObject", "PodMonitor", "HTTPRoute", "StatefulSet"} <= {each["kind"] for each in objects}
    assert [fault for each in objects for fault in faults(VERSIONS[-1], each)] == []


def test_each_component_is_rendered_by_a_case() -> None:
    known = {each.name for each in (KUBERNETES / "components").iterdir()}
    in_overlays = {
        line.rpartition("/")[2]
        for overlay in (KUBERNETES / "overlays").rglob("kustomization.yaml")
        for line in overlay.read_text().splitlines()
        if "/components/" in line
    }
    assert {part for case in CASES for part in case.components} | in_overlays == known
