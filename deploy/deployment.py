"""Deploys an overlay and takes it down again: look, ask, apply, wait, send one request."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import yaml

from deploy.conditions import lacks, name_of, troubles
from deploy.errors import DeployError
from deploy.kubectl import Kubectl
from deploy.manifests import Object, Rendered, secrets_of, surging_gpus
from deploy.secrets import OURS, make_secrets
from deploy.smoke import send_one

MANAGER = "tidegate-deploy"
"""Field manager of server-side apply: fields that another one has changed since are conflicts, and are told."""

_LOOK_S = 2.0
_GRACE_S = 30
"""Kubernetes' own grace period of a pod that names none."""
_AFTER_GRACE_S = 60
"""Time for a kubelet to kill what has not ended in its grace period, and to report that."""
_KEPT = frozenset(("Namespace", "PersistentVolumeClaim"))
"""Kinds that `undeploy` leaves: deleting the namespace would delete its volumes and Secrets."""
_CLUSTERS = "CustomResourceDefinition"
"""Kind that it leaves in any case: with a definition go all objects of that kind, in every namespace of the cluster."""


@dataclass(frozen=True)
class Console:
    """Terminal of a deployment: says what is done, and asks whether to go on."""

    say: Callable[[str], None]
    ask: Callable[[str], bool]


@dataclass(frozen=True)
class Deployment:
    """One deployment of an overlay to a cluster."""

    kubectl: Kubectl
    rendered: Rendered
    console: Console
    wait_s: float = 1800.0
    model: str = ""
    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def deploy(self) -> None:
        """Show what would change, ask, apply, wait, and send one request.

        Raises DeployError: the object, the reason, and what to do next.
        """
        self.require_room_for_surges()
        missing = self._missing_secrets()
        text = self._with_kept_replicas()
        changes = self._changes(text)
        if changes or missing:
            self.console.say(changes or "no object changes")
            for name in missing:
                self.console.say(f"+ secret/{name}, with a new password")
            if not self.console.ask("apply this?"):
                raise DeployError("nothing was applied")
            self._apply(missing, text)
        else:
            self.console.say("nothing changes")
        self._wait()
        self._require_image_volumes()
        self.console.say(send_one(self.kubectl, self.rendered.namespace, self.model).text)

    def undeploy(self, *, with_volumes: bool) -> None:
        """Delete the overlay's objects and wait until their pods have ended; the namespace, and with it volumes and Secrets,
        only if told so. Raises DeployError."""
        namespace = self.rendered.namespace
        objects = [each for each in self.rendered.objects if (with_volumes or each["kind"] not in _KEPT) and each["kind"] != _CLUSTERS]
        self.console.say("\n".join(f"- {name_of(each)}" for each in objects))
        if with_volumes:
            self.console.say(f"with the namespace {namespace} go its volumes (keys, tenants, usage) and Secrets")
        if not self.console.ask("delete this?"):
            raise DeployError("nothing was deleted")
        given = yaml.safe_dump_all(objects)
        self.kubectl.ask("delete", "--filename=-", "--ignore-not-found", "--wait=true", given=given, timeout_s=self.wait_s)
        if not with_volumes:
            self.console.say(f"left: namespace/{namespace}, its volumes and its Secrets (VOLUMES=delete deletes them)")
        for each in self.rendered.objects:
            if each["kind"] == _CLUSTERS:
                self.console.say(f"left: {name_of(each)}; `kubectl delete {name_of(each)}` also deletes all of that kind in the cluster")
        self._wait_for_pods()

    # Before anything is applied.

    def require_room_for_surges(self) -> None:
        """Raise if an update of a Deployment would wait for ever for a GPU: the cluster has one for each replica only."""
        for where, resource, needed in surging_gpus(self.rendered.objects):
            nodes = self.kubectl.items("nodes")
            there = sum(int(each["status"].get("allocatable", {}).get(resource, 0)) for each in nodes)
            if 0 < there <= needed:
                raise DeployError(
                    f"{where}: its strategy starts a new pod before an old one ends, "
                    f"and the cluster has {there} {resource} for its {needed}",
                    next_step="add the component in-place to the overlay, or another GPU to the cluster",
                )

    def _missing_secrets(self) -> list[str]:
        """The Secrets that are not there and can be made. Raises DeployError: one that only its owner can make."""
        namespace, wanted = self.rendered.namespace, secrets_of(self.rendered.objects)
        missing = [name for name in wanted if not self.kubectl.exists(f"secret/{name}", f"--namespace={namespace}")]
        # Redis' are two sides of one password, so they can be made for our own Redis only.
        ours = [each for each in OURS if wanted.keys() >= each]
        for name in missing:
            if not any(name in each for each in ours):
                keys = " ".join(f"--from-file={key}=FILE" for key in sorted(wanted[name]))
                raise DeployError(f"secret/{name} is missing", next_step=f"kubectl create secret generic {name} -n {namespace} {keys}")
        for each in ours:
            if (there := sorted(each - set(missing))) and (gone := sorted(each & set(missing))):
                raise DeployError(
                    f"secret/{gone[0]} is missing while secret/{there[0]} is there: they hold two sides of one password",
                    next_step=f"restore it, or delete secret/{there[0]} so that both are made anew",
                )
        return missing

    def _changes(self, text: str) -> str:
        """What applying would change, as `kubectl diff` shows it; empty if nothing."""
        namespace = self.rendered.namespace
        if not self.kubectl.exists(f"namespace/{namespace}"):
            # `kubectl diff` cannot look into a namespace that is not there.
            return "\n".join(f"+ {name_of(each)}" for each in self.rendered.objects)
        found = self.kubectl.run("diff", "--server-side", f"--field-manager={MANAGER}", "--filename=-", given=text)
        if found.status > 1:
            raise DeployError(f"`kubectl diff` failed: {found.err}", next_step=_next_of(found.err))
        return found.out if found.status == 1 else ""

    def _with_kept_replicas(self) -> str:
        """Return the objects as they are applied: a workload that an autoscaler is to have from now on keeps as many replicas as it
        has. An apply that leaves out a field of which its manager is the only one resets it, here to one replica.
        """
        kept = {name_of(each): count for each in self.rendered.workloads if (count := self._replicas_of_ours(each)) is not None}
        if not kept:
            return self.rendered.text
        objects = [
            {**each, "spec": {**each["spec"], "replicas": kept[name_of(each)]}} if name_of(each) in kept else each
            for each in self.rendered.objects
        ]
        return str(yaml.safe_dump_all(objects))

    def _replicas_of_ours(self, workload: Object) -> int | None:
        """Return the replicas of a workload whose manifest says none any more, and of which nobody else has said a number since."""
        where = name_of(workload), f"--namespace={workload['metadata']['namespace']}"
        if "replicas" in workload["spec"] or not self.kubectl.exists(*where):
            return None
        live = self.kubectl.get(*where, "--show-managed-fields")
        fields = [each.get("fieldsV1", {}) for each in live["metadata"].get("managedFields", ()) if each["manager"] == MANAGER]
        return int(live["spec"]["replicas"]) if any("f:replicas" in each.get("f:spec", {}) for each in fields) else None

    # The change itself.

    def _apply(self, missing: Sequence[str], text: str) -> None:
        """Apply the namespace, then the Secrets, then everything."""
        namespaces = [each for each in self.rendered.objects if each["kind"] == "Namespace"]
        self._apply_text(yaml.safe_dump_all(namespaces))
        made = make_secrets()
        for name in missing:
            # By standard input: arguments can be read by every user of this machine. `create` never replaces one.
            self.kubectl.ask("create", "--filename=-", given=json.dumps(_secret(name, self.rendered.namespace, made[name])))
        self._apply_text(text)

    def _apply_text(self, text: str) -> None:
        done = self.kubectl.run("apply", "--server-side", f"--field-manager={MANAGER}", "--filename=-", given=text, timeout_s=120.0)
        if done.status != 0:
            raise DeployError(f"`kubectl apply` failed: {done.err}", next_step=_next_of(done.err))
        self.console.say(done.out.strip())

    # Afterwards.

    def _wait(self) -> None:
        """Wait until every workload is as its spec says. Raises DeployError: what keeps it, when the time is over."""
        deadline_s, told = self.now_s() + self.wait_s, ""
        while True:
            live = [self._live(each) for each in self.rendered.workloads]
            left = [f"{name_of(each)}: {lack}" for each in live if (lack := lacks(each))]
            if not left:
                return
            if (text := "; ".join(left)) != told:
                self.console.say(f"waiting: {text}")
            told = text
            if self.now_s() > deadline_s:
                raise self._failure([each for each in live if lacks(each)], left)
            self.sleep(_LOOK_S)

    def _live(self, workload: Object) -> Object:
        return self.kubectl.get(name_of(workload), f"--namespace={workload['metadata']['namespace']}")

    def _wait_for_pods(self) -> None:
        """Wait until the pods of deleted workloads have ended, for which their deletion does not wait.

        Raises DeployError: some still end a minute after the longest of their grace periods.
        """
        graces = [each["spec"]["template"]["spec"].get("terminationGracePeriodSeconds", _GRACE_S) for each in self.rendered.workloads]
        wait_s = min(self.wait_s, max(graces, default=0) + _AFTER_GRACE_S)
        deadline_s, told = self.now_s() + wait_s, ""
        while left := [f"pod/{each['metadata']['name']}" for each in self._pods_of(self.rendered.workloads)]:
            if (text := ", ".join(left)) != told:
                self.console.say(f"waiting until they end: {text}")
            told = text
            if self.now_s() > deadline_s:
                raise DeployError(
                    f"deleted, but after {wait_s:g} s still ending: {text}",
                    next_step=f"is a node of theirs lost? `kubectl get pods -n {self.rendered.namespace} -o wide` shows where they are",
                )
            self.sleep(_LOOK_S)

    def _pods_of(self, workloads: Sequence[Object]) -> list[Object]:
        pods: list[Object] = []
        for each in workloads:
            labels = ",".join(f"{key}={value}" for key, value in each["spec"]["selector"]["matchLabels"].items())
            pods += self.kubectl.items("pods", f"--namespace={each['metadata']['namespace']}", f"--selector={labels}")
        return pods

    def _failure(self, live: Sequence[Object], left: Sequence[str]) -> DeployError:
        found = "\n".join(map(str, troubles(live, self._pods_of(live)))) or "its pods say nothing of it: `kubectl get events` may"
        return DeployError(f"not rolled out after {self.wait_s:g} s: {'; '.join(left)}\n{found}")

    def _require_image_volumes(self) -> None:
        """Raise if the API server has dropped volumes that are images, which one that does not know them does silently."""
        for each in self.rendered.workloads:
            wanted = [volume["name"] for volume in each["spec"]["template"]["spec"].get("volumes", ()) if "image" in volume]
            if not wanted:
                continue
            volumes = self._live(each)["spec"]["template"]["spec"].get("volumes", ())
            if lost := set(wanted) - {volume["name"] for volume in volumes if "image" in volume}:
                raise DeployError(
                    f"{name_of(each)}: the cluster has dropped the image of volume {sorted(lost)[0]!r}",
                    next_step="leave out the component model-images: image volumes need Kubernetes 1.33 or newer, with ImageVolume on",
                )


def _secret(name: str, namespace: str, files: Mapping[str, str]) -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/part-of": "tidegate"}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": dict(files)}


_NEXT_OF = {
    "conflict": "somebody has changed those fields: put their value into your overlay, or leave the field out of it",
    "no matches for kind": "the cluster lacks that kind: install what brings it, or leave out the component",
    "violates PodSecurity": "the namespace's Pod Security level refuses the pod",
    "orbidden": "your account may not do this in the cluster: ask for the right, or use another context",
    "connection refused": "is the cluster reachable? `kubectl get nodes` says so",
}


def _next_of(text: str) -> str:
    """What to do about an error of kubectl, by its words."""
    return next((step for words, step in _NEXT_OF.items() if words in text), "")
