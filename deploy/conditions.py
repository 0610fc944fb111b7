"""What a cluster says of workloads: whether they have been rolled out, and what keeps a pod from being ready.

Pure: objects as kubectl prints them go in, words come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Finding about an object that is not what it should be: why, and what to do next."""

    where: str
    reason: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}\n  next: {self.next_step}"


def name_of(it: Object) -> str:
    return f"{it['kind'].lower()}/{it['metadata']['name']}"


def lacks(workload: Object) -> str:
    """What a Deployment or StatefulSet lacks of being rolled out as its spec says; empty if nothing.

    As `kubectl rollout status` decides it: the controller has seen the spec, and every replica is of the new template
    and available.
    """
    metadata, spec, status = workload["metadata"], workload["spec"], workload.get("status") or {}
    if status.get("observedGeneration", 0) < metadata.get("generation", 0):
        return "its controller has not seen the change yet"
    wanted = spec.get("replicas", 1)
    updated = status.get("updatedReplicas", 0)
    if workload["kind"] == "StatefulSet" and status.get("updateRevision") == status.get("currentRevision"):
        updated = status.get("replicas", 0)
    available = status.get("availableReplicas", 0)
    if updated < wanted:
        return f"{updated} of {wanted} pods are new"
    if status.get("replicas", 0) > updated:
        return f"{status['replicas'] - updated} old pods have not ended"
    if available < wanted:
        return f"{available} of {wanted} pods are available"
    return ""


# Reason that Kubernetes gives -> what to do.
_NEXT = {
    "ErrImagePull": "check the image's name and digest, and the namespace's pull secret: `kubectl describe pod`",
    "ImagePullBackOff": "check the image's name and digest, and the namespace's pull secret: `kubectl describe pod`",
    "InvalidImageName": "name the image as REGISTRY/NAME@sha256:DIGEST",
    "CreateContainerConfigError": "a Secret or ConfigMap that the pod mounts is missing: `kubectl describe pod`",
    "CreateContainerError": "the node could not make the container: `kubectl describe pod`",
    "RunContainerError": "the container's command could not be run: is it the right image?",
    "CrashLoopBackOff": "its last log says why: `kubectl logs --previous`",
    "OOMKilled": "raise its memory limit, or lower what it holds (TIDEGATE_CACHE_BYTES, the memory budget)",
    "Unschedulable": "no node has room, or the labels that it asks for: compare its requests with `kubectl describe nodes`",
    "FailedCreate": "the namespace refuses the pod: a quota, or its Pod Security level",
    "ProgressDeadlineExceeded": "see what its pods say above",
}
_DESCRIBE = "`kubectl describe` says more"


def troubles(workloads: Iterable[Object], pods: Sequence[Object]) -> Iterator[Trouble]:
    """Yield what keeps workloads from being rolled out: conditions of their own, then what their pods say."""
    for workload in workloads:
        for condition in (workload.get("status") or {}).get("conditions") or ():
            is_bad = (condition["type"], condition["status"]) in (("ReplicaFailure", "True"), ("Progressing", "False"))
            if is_bad:
                yield _trouble(name_of(workload), condition.get("reason", ""), condition.get("message", ""))
    for pod in pods:
        yield from _of_pod(pod)


def _of_pod(pod: Object) -> Iterator[Trouble]:
    status = pod.get("status") or {}
    where = f"pod/{pod['metadata']['name']}"
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            yield _trouble(where, condition.get("reason", ""), condition.get("message", ""))
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
        last = (container.get("lastState") or {}).get("terminated") or {}
        if waiting.get("reason") in _NEXT:
            because = f", it ended last with {last['reason']} (status {last.get('exitCode')})" if last.get("reason") else ""
            reason = "OOMKilled" if last.get("reason") == "OOMKilled" else waiting["reason"]
            yield Trouble(
                f"{where} container {container['name']}",
                f"{waiting['reason']} {waiting.get('message', '')}".strip() + because,
                _NEXT[reason],
            )
        elif (container.get("state") or {}).get("running") and not container.get("ready"):
            next_step = "it runs and is not ready: `kubectl logs`, and its probes in `kubectl describe pod`"
            yield Trouble(f"{where} container {container['name']}", "not ready", next_step)


def _trouble(where: str, reason: str, message: str) -> Trouble:
    return Trouble(where, f"{reason}: {message}".strip(": "), _NEXT.get(reason, _DESCRIBE))
