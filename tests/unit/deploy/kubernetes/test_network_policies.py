"""Who may talk to whom: the table of each overlay is a file, so that whoever opens a way sees that they do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.deploy.kubernetes.network import table
from tests.unit.deploy.rendered import CASES, Case, of_kind, render, workloads

GOLDEN = Path(__file__).parent / "golden"
SHOWN = ((), ("monitoring",), ("jobs",), ("events",), ("regions",))


@pytest.mark.parametrize("case", [case for case in CASES if case.components in SHOWN], ids=str)
def test_who_may_talk_to_whom(case: Case) -> None:
    golden = GOLDEN / f"{case}.txt"
    found = table(render(case))
    if os.environ.get("WRITE_GOLDEN"):
        golden.write_text(found)
    assert found == golden.read_text()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_only_gateways_reach_a_triton_and_its_node_which_reach_nobody(case: Case) -> None:
    lines = table(render(case)).splitlines()
    assert {line.partition(" -> ")[0] for line in lines if " -> triton:" in line} <= {"gateway"}
    assert [line for line in lines if line.startswith("triton -> ")] == []


@pytest.mark.parametrize("case", CASES, ids=str)
def test_without_a_policy_of_its_own_a_pod_is_closed(case: Case) -> None:
    objects = render(case)
    (closed,) = [each for each in of_kind(objects, "NetworkPolicy") if each["metadata"]["name"] == "default-deny"]
    assert closed["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert {each["metadata"]["namespace"] for each in workloads(objects)} == {closed["metadata"]["namespace"]}


@pytest.mark.parametrize("component", ["monitoring", "events", "regions"])
def test_each_policy_opens_something(component: str) -> None:
    objects = render(Case("local", (component,)))
    whole = table(objects)
    for policy in of_kind(objects, "NetworkPolicy"):
        assert table([each for each in objects if each is not policy]) != whole, policy["metadata"]["name"]


def test_of_events_there_is_nothing_for_who_only_calls_himself_a_subscriber_nor_anything_else_for_one() -> None:
    lines = table(render(Case("local", ("events",)))).splitlines()
    assert {line for line in lines if " -> events:" in line} == {"gateway -> events: 6379/TCP", "a subscriber -> events: 6379/TCP"}
    assert {line for line in lines if line.startswith("a subscriber -> ")} == {
        "a subscriber -> gateway: 8000/TCP, 8001/TCP",
        "a subscriber -> events: 6379/TCP",
    }
    assert not [line for line in lines if line.startswith("events -> ")]
