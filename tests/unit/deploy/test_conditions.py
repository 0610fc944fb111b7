"""What a cluster says of workloads and pods, in our words."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.conditions import lacks, troubles


def workload(kind: str = "Deployment", *, wanted: int | None = 2, **status: Any) -> dict[str, Any]:
    spec = {} if wanted is None else {"replicas": wanted}
    return {"kind": kind, "metadata": {"name": "w", "generation": 3}, "spec": spec, "status": status}


DONE = {"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}


@pytest.mark.parametrize(
    ("it", "expected"),
    [
        pytest.param(workload(**DONE), "", id="done"),
        pytest.param(workload(), "its controller has not seen the change yet", id="new"),
        pytest.param(workload(**{**DONE, "observedGeneration": 2}), "its controller has not seen the change yet", id="not seen"),
        pytest.param(workload(**{**DONE, "updatedReplicas": 1}), "1 of 2 pods are new", id="being replaced"),
        pytest.param(workload(**{**DONE, "replicas": 3}), "1 old pods have not ended", id="an old one ends"),
        pytest.param(workload(**{**DONE, "availableReplicas": 1}), "1 of 2 pods are available", id="not available"),
        pytest.param(
            workload(wanted=None, **{**DONE, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}), "", id="one by default"
        ),
        pytest.param(workload(wanted=0, observedGeneration=3), "", id="none wanted"),
        pytest.param(
            workload("StatefulSet", observedGeneration=3, replicas=2, availableReplicas=2, updateRevision="a", currentRevision="a"),
            "",
            id="a StatefulSet whose update is over counts no updated replicas",
        ),
        pytest.param(
            workload("StatefulSet", observedGeneration=3, replicas=2, updatedReplicas=1, updateRevision="b", currentRevision="a"),
            "1 of 2 pods are new",
            id="a StatefulSet being updated",
        ),
    ],
)
def test_what_a_workload_lacks(it: dict[str, Any], expected: str) -> None:
    assert lacks(it) == expected


def pod(**status: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": "p"}, "status": status}


def container(state: dict[str, Any], *, ready: bool = False, last: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"name": "c", "ready": ready, "state": state, "lastState": {"terminated": last} if last else {}}


CRASHES = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}


@pytest.mark.parametrize(
    ("it", "where", "reason", "next_step"),
    [
        (
            container({"waiting": {"reason": "ErrImagePull", "message": "denied"}}),
            "pod/p container c",
            "ErrImagePull denied",
            "pull secret",
        ),
        (
            container({"waiting": {"reason": "CreateContainerConfigError"}}),
            "pod/p container c",
            "CreateContainerConfigError",
            "a Secret or ConfigMap",
        ),
        (
            container(CRASHES, last={"reason": "Error", "exitCode": 1}),
            "pod/p container c",
            "it ended last with Error (status 1)",
            "--previous",
        ),
        (container(CRASHES, last={"reason": "OOMKilled", "exitCode": 137}), "pod/p container c", "OOMKilled (status 137)", "memory limit"),
        (container({"running": {"startedAt": "x"}}), "pod/p container c", "not ready", "its probes"),
    ],
)
def test_what_keeps_a_container_from_being_ready(it: dict[str, Any], where: str, reason: str, next_step: str) -> None:
    (found,) = troubles([], [pod(containerStatuses=[it])])
    assert found.where == where
    assert reason in found.reason
    assert next_step in found.next_step


@pytest.mark.parametrize(
    "it",
    [
        pod(),
        pod(containerStatuses=[container({"running": {}}, ready=True)]),
        pod(containerStatuses=[container({"waiting": {"reason": "ContainerCreating"}})]),
        pod(containerStatuses=[container({"terminated": {"reason": "Completed"}})]),
    ],
)
def test_what_is_no_trouble(it: dict[str, Any]) -> None:
    assert list(troubles([], [it])) == []


def test_a_workload_says_why_its_pods_are_not_made() -> None:
    conditions = [
        {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "violates PodSecurity"},
        {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"},
        {"type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable"},
    ]
    (found,) = troubles([workload(conditions=conditions)], [])
    assert str(found) == (
        "deployment/w: FailedCreate: violates PodSecurity\n  next: the namespace refuses the pod: a quota, or its Pod Security level"
    )
