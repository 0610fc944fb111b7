"""Dashboards and alerts ask for metrics and labels that there are, and Grafana gets them as it wants them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from control_plane.settings import PROJECT_ROOT
from tests.dashboards import MONITORING, choices, dashboards, everything, panels, queries, rule_groups
from tests.unit.deploy.rendered import Case, named, render

BOARDS = dashboards()
OF_SCRAPES = {"namespace", "pod"}
"""Labels that a PodMonitor gives to all that is scraped."""
MODEL = {"model", "version", "server"}
GPU = {"gpu_uuid", "server"}
# Of Triton 24.10's docs/user_guide/metrics.md. In a fleet the gateway adds `server` to each (`merged_metrics_steps`).
TRITON: dict[str, set[str]] = {
    "nv_inference_request_success": MODEL,
    "nv_inference_request_failure": MODEL | {"reason"},
    "nv_inference_count": MODEL,
    "nv_inference_exec_count": MODEL,
    "nv_inference_request_duration_us": MODEL,
    "nv_inference_queue_duration_us": MODEL,
    "nv_inference_compute_infer_duration_us": MODEL,
    "nv_inference_pending_request_count": MODEL,
    "nv_cpu_utilization": {"server"},
    "nv_cpu_memory_used_bytes": {"server"},
    "nv_cpu_memory_total_bytes": {"server"},
    "nv_gpu_utilization": GPU,
    "nv_gpu_memory_used_bytes": GPU,
    "nv_gpu_memory_total_bytes": GPU,
}
OF_PROMETHEUS = {"ALERTS": {"alertname", "alertstate"}}
# Shown as they are: each stands on Triton's page of its model.
ON_TRITONS_PAGE = ("tidegate_batching_", "tidegate_served_variant")
SELECTOR = re.compile(r"\b((?:tidegate|nv)_\w+|ALERTS)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(?:=~|!~|!=|=)"([^"]*)"')
AGGREGATION = re.compile(r"\bby \(([^)]*)\) \(")


def reference() -> dict[str, dict[str, set[str]]]:
    """Metrics of the reference with their labels, and the values of these where it lists them."""
    page = (PROJECT_ROOT / "docs/reference/metrics.md").read_text()
    found: dict[str, dict[str, set[str]]] = {}
    for name, kind, rest in re.findall(r"^\* `(\w+)`, (\w+):(.*?)(?=^\* |^#|\Z)", page, re.MULTILINE | re.DOTALL):
        labels: dict[str, set[str]] = {}
        for part in " ".join(rest.split()).partition("Labels: ")[2].split(";"):
            first, *values = re.findall(r"`(\w+)`", part) or [""]
            labels |= {first: set(values)} if f"`{first}`:" in part else {each: set() for each in (first, *values) if each}
        if name.startswith(ON_TRITONS_PAGE):
            labels["server"] = set()
        found |= (
            {f"{name}_bucket": labels | {"le": set()}, f"{name}_sum": labels, f"{name}_count": labels}
            if kind == "histogram"
            else {name: labels}
        )
    return found


RECORDED: dict[str, set[str]] = {rule["record"]: {"pool"} for group in rule_groups() for rule in group["rules"] if "record" in rule}
KNOWN: dict[str, dict[str, set[str]]] = reference() | {
    name: {label: set() for label in labels} for name, labels in (TRITON | OF_PROMETHEUS | RECORDED).items()
}


def faults(text: str) -> Iterator[str]:
    """What PromQL asks for that there is not."""
    for name, matchers in SELECTOR.findall(text):
        if name not in KNOWN:
            yield f"no metric {name}"
            continue
        for label, values in MATCHER.findall(matchers):
            if label not in KNOWN[name].keys() | OF_SCRAPES:
                yield f"no label {label} of {name}"
            elif known := KNOWN[name].get(label):
                yield from (f"no {label} {value} of {name}" for value in values.split("|") if "$" not in value and value not in known)
    for found in AGGREGATION.finditer(text):
        labels = set(found[1].split(", "))
        for name, _ in SELECTOR.findall(text[found.end() : end_of(text, found.end())]):
            yield from (f"{name} has no {label} to sum by" for label in labels - KNOWN.get(name, {}).keys() - OF_SCRAPES)


def end_of(text: str, start: int) -> int:
    """Where the parenthesis ends that was opened before `start`."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    raise AssertionError(f"a parenthesis is left open: {text}")


@pytest.mark.parametrize("query", [pytest.param(each, id=f"{each.panel} {each.legend}") for each in queries()])
def test_panels_ask_for_metrics_and_labels_that_there_are(query: Any) -> None:
    assert list(faults(query.text)) == []
    assert SELECTOR.search(query.text)
    shown = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
    assert shown <= {label for labels in re.findall(r"by \(([^)]*)\)", query.text) for label in labels.split(", ")}


def test_variables_list_labels_that_there_are() -> None:
    for series, label in choices():
        assert list(faults(series)) == []
        assert label in KNOWN[series.partition("{")[0]].keys() | OF_SCRAPES


@pytest.mark.parametrize(
    "rule", [pytest.param(rule, id=rule.get("alert") or rule["record"]) for group in rule_groups() for rule in group["rules"]]
)
def test_rules_ask_for_metrics_and_labels_that_there_are(rule: Any) -> None:
    assert list(faults(rule["expr"])) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("rate(tidegate_request_total[1m])", ["no metric tidegate_request_total"], id="a metric"),
        pytest.param('nv_inference_count{name="a"}', ["no label name of nv_inference_count"], id="a label"),
        pytest.param('tidegate_requests_total{outcome=~"answered|ok"}', ["no outcome ok of tidegate_requests_total"], id="a value"),
        pytest.param("sum by (pod, tenant) (tidegate_workers)", ["tidegate_workers has no tenant to sum by"], id="a label to sum by"),
    ],
)
def test_what_there_is_not_is_found(text: str, expected: list[str]) -> None:
    assert list(faults(text)) == expected


def test_whatever_is_to_be_watched_is_shown() -> None:
    page = (PROJECT_ROOT / "docs/operations/monitor.md").read_text()
    watched = set(re.findall(r"\b(?:tidegate|nv)_[a-z_]+\b", page))
    assert len(watched) >= 20
    shown = {name.removesuffix("_bucket") for each in queries() for name, _ in SELECTOR.findall(each.text)}
    assert watched - shown == set()


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
class TestBoard:
    def test_each_panel_says_what_it_is_and_what_to_do(self, board: Any) -> None:
        assert (board["schemaVersion"], len(board["uid"]) <= 40) == (39, True)
        for panel in panels(board):
            assert panel["title"], panel
            assert panel["description"].endswith("."), panel["title"]
            assert "<" not in panel["description"], "Grafana takes that for a tag and drops it"
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
            assert len({each["refId"] for each in panel["targets"]}) == len(panel["targets"]) > 0

    def test_ids_and_titles_are_unique(self, board: Any) -> None:
        for field in ("id", "title"):
            found = [each[field] for each in board["panels"]]
            assert len(set(found)) == len(found), field

    def test_no_panel_covers_another(self, board: Any) -> None:
        places = [each["gridPos"] for each in board["panels"]]
        assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 and place["h"] > 0 for place in places)
        for one, other in combinations(places, 2):
            beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
            assert beside or below, (one, other)
        assert [place["y"] for place in places] == sorted(place["y"] for place in places)

    def test_variables_are_declared_before_they_are_used(self, board: Any) -> None:
        declared = {"__rate_interval"}
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                assert variables_of(variable["query"]["query"]) <= declared
                assert (variable["includeAll"], variable["allValue"]) == (True, ".*"), "what has no such label is shown, too"
            declared.add(variable["name"])
        used = {name for panel in panels(board) for each in panel["targets"] for name in variables_of(each["expr"])}
        assert used <= declared
        assert declared - used == {"datasource"}


def variables_of(text: str) -> set[str]:
    return set(re.findall(r"\$(\w+)", text))


def test_grafanas_sidecar_finds_them() -> None:
    found = named(render(Case("gpu", ("monitoring",))), "ConfigMap", "tidegate-dashboards")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["data"] == {path.name: path.read_text() for path in MONITORING.glob("*.json")}


def test_the_names_of_one_dashboard_are_not_anothers() -> None:
    assert len({board["uid"] for board in BOARDS.values()}) == len({board["title"] for board in BOARDS.values()}) == len(BOARDS) == 2
    assert everything('a{model=~"$model"}') == 'a{model=~".*"}'
