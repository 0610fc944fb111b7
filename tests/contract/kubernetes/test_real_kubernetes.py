"""What only a real API server of Kubernetes can say of our manifests, and of adapters while it restarts and forgets."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from control_plane.fleet.adapters.kubernetes.lease import KubernetesLease
from control_plane.fleet.adapters.kubernetes.servers import KubernetesServers
from control_plane.fleet.domain.leadership.election import LeaseLimits
from control_plane.fleet.leadership.election import LeaderElection
from control_plane.operator.adapters.kubernetes import KubernetesModels
from control_plane.storage.kubernetes import Gone
from tests.contract.kubernetes.api_servers import RIGHTS
from tests.contract.kubernetes.kubernetes_api_bench import client, running, slice_of
from tests.kubernetes_api import endpoint, model_resource
from tests.real_kubernetes import WHY_NOT, RealApi, is_there
from tests.unit.deploy.rendered import CASES, Case, kubectl, of_kind, render, workloads
from tests.unit.deploy.schemas import CUSTOM

pytestmark = pytest.mark.skipif(not is_there(), reason=WHY_NOT)


@pytest.fixture
def api(kubernetes: RealApi) -> RealApi:
    kubernetes.install()
    return kubernetes


# Manifests.


def told(api: RealApi, *words: str, given: Sequence[Mapping[str, Any]]) -> str:
    """Give objects to `kubectl`, and return what it complains of."""
    command = [kubectl(), f"--kubeconfig={api.kubeconfig}", *words, "--filename=-"]
    done = subprocess.run(command, input=yaml.safe_dump_all(given), capture_output=True, text=True, timeout=120, check=False)
    return "" if done.returncode == 0 and not done.stderr else f"{done.returncode} {done.stderr}"


@pytest.fixture(scope="module")
def ready_for_dry_runs(kubernetes: RealApi) -> RealApi:
    """One with all that pods and objects of our manifests refer to: namespaces, priorities, accounts."""
    kubernetes.install()
    models = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "models"}}
    kinds = ("Namespace", "PriorityClass", "ServiceAccount")
    found = {json.dumps(it, sort_keys=True): it for case in CASES for it in of_kind(render(case), *kinds)}
    assert told(kubernetes, "apply", "--server-side", given=[models, *found.values()]) == ""
    return kubernetes


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_object_of_ours_is_accepted_to_the_letter(ready_for_dry_runs: RealApi, case: Case) -> None:
    ours = [it for it in render(case) if (it["apiVersion"], it["kind"]) not in CUSTOM]
    assert told(ready_for_dry_runs, "apply", "--server-side", "--dry-run=server", "--validate=strict", given=ours) == ""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_pod_is_let_into_a_restricted_namespace(ready_for_dry_runs: RealApi, case: Case) -> None:
    pods = [pod_of(it) for it in workloads(render(case))]
    assert told(ready_for_dry_runs, "create", "--dry-run=server", "--validate=strict", given=pods) == ""


def pod_of(workload: Mapping[str, Any]) -> dict[str, Any]:
    """The pod that a controller makes of a workload's template."""
    template = workload["spec"]["template"]
    metadata = {**template["metadata"], "name": f"{workload['metadata']['name']}-0", "namespace": workload["metadata"]["namespace"]}
    spec = dict(template["spec"])
    claims = [each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", ())]
    spec["volumes"] = [*spec.get("volumes", ()), *({"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims)]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def test_what_is_wrong_is_refused(ready_for_dry_runs: RealApi) -> None:
    """The tests before this one would say so."""
    (deployment,) = [it for it in render(Case("local")) if (it["kind"], it["metadata"]["name"]) == ("Deployment", "gateway")]
    misspelt = {**deployment, "spec": {**deployment["spec"], "replica": 2}}
    dry = ("--dry-run=server", "--validate=strict")
    assert "replica" in told(ready_for_dry_runs, "apply", "--server-side", *dry, given=[misspelt])
    pod = pod_of(deployment)
    pod["spec"] = {**pod["spec"], "hostNetwork": True}
    assert "violates PodSecurity" in told(ready_for_dry_runs, "create", *dry, given=[pod])


# Models.


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        ({"min_replicas": 2}, ""),
        ({"everywhere": True}, ""),
        ({"is_suspended": True, "model": "text_embedding"}, ""),
        ({"everywhere": False, "min_replicas": 0}, ""),
        ({}, "give one of min_replicas"),
        ({"min_replicas": 1, "everywhere": True}, "give one of min_replicas"),
        ({"min_replicas": -1}, "greater than or equal to 0"),
        ({"min_replicas": "two"}, "must be of type integer"),
        ({"min_replicas": 1, "model": "../up"}, "should match"),
        ({"min_replicas": 1, "replicas": 2}, "unknown field"),
    ],
)
def test_a_model_is_accepted_where_it_says_one_thing(api: RealApi, spec: dict[str, Any], refusal: str) -> None:
    said = told(api, "apply", "--validate=strict", given=[model_resource("encoder", **spec)])
    assert refusal in said
    assert bool(said) == bool(refusal)


def test_the_model_of_the_documents_is_accepted_and_shown(api: RealApi) -> None:
    written = (Path(__file__).parents[3] / "docs/how-to/kubernetes.md").read_text()
    (mine,) = [block for block in re.findall(r"```yaml\n(.*?)```", written, re.DOTALL) if "kind: Model\n" in block]
    assert told(api, "apply", "--validate=strict", given=[yaml.safe_load(mine)]) == ""
    name = yaml.safe_load(mine)["metadata"]["name"]
    condition = {"status": "True", "message": "", "lastTransitionTime": "2026-11-23T20:00:00Z"}
    conditions = [{"type": "Accepted", "reason": "Applied", **condition}, {"type": "Ready", "reason": "Loaded", **condition}]
    api.patch_status("Model", name, {"replicas": 2, "conditions": conditions})
    words = [kubectl(), f"--kubeconfig={api.kubeconfig}", "get", "models", "--namespace=tidegate", "--no-headers"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[:5] == [name, "True", "Loaded", "Applied", "2"]


# Rights.


def verbs() -> list[Any]:
    found = []
    for path in RIGHTS:
        (role,) = [
            it for it in yaml.safe_load_all((Path(__file__).parents[3] / "deploy/kubernetes" / path).read_text()) if it["kind"] == "Role"
        ]
        for number, rule in enumerate(role["rules"]):
            found += [pytest.param(role, number, verb, id=f"{verb} {rule['resources'][0]}") for verb in rule["verbs"]]
    return found


@pytest.mark.parametrize(("role", "number", "dropped"), verbs())
async def test_without_a_verb_the_server_refuses_what_it_is_for(
    api: RealApi, role: dict[str, Any], number: int, dropped: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    rules = [
        {**rule, "verbs": [each for each in rule["verbs"] if (at, each) != (number, dropped)]} for at, rule in enumerate(role["rules"])
    ]
    await asyncio.to_thread(api.apply, model_resource("encoder", min_replicas=1))
    await asyncio.to_thread(api.apply, {**role, "rules": [rule for rule in rules if rule["verbs"]]})

    async def everything() -> None:
        servers = KubernetesServers(client(api), namespace="tidegate", services="triton")
        models = KubernetesModels(client(api), namespace="tidegate")
        lease = KubernetesLease(client(api), namespace="tidegate", name="tidegate")
        election = LeaderElection(lease, holder="p1", limits=LeaseLimits(ttl_s=1.0, margin_s=0.2))
        async with asyncio.TaskGroup() as tasks:
            for each in (servers, models, election):
                tasks.create_task(each.run())
            while not models.listed():
                await asyncio.sleep(0.05)
            (found,) = models.listed() or ()
            while True:
                try:
                    await models.put_status(found, {"replicas": 1})
                except Exception as exc:
                    logging.getLogger(__name__).warning("%s", exc)
                await asyncio.sleep(0.5)

    resource = role["rules"][number]["resources"][0]
    refused = re.compile(rf'{re.escape(resource.partition("/")[0])}\S* (\S+ )?is forbidden: .* cannot {dropped} resource "{resource}"')
    async with running(everything()) as until:
        await until(lambda: refused.search(caplog.text) is not None)


# A server that restarts and forgets.


async def test_servers_are_found_again_after_restarts_and_compactions(api: RealApi) -> None:
    servers = KubernetesServers(client(api), namespace="tidegate", services="triton")
    async with running(servers.run()) as until:

        async def has(*names: str) -> None:
            await until(lambda: {each.name for each in servers.read()} == set(names))

        await asyncio.to_thread(api.apply, slice_of("s1", endpoint("triton-a", "10.0.0.1")))
        await has("triton-a")
        await asyncio.to_thread(api.stop)
        await asyncio.to_thread(api.start)
        await asyncio.to_thread(api.apply, slice_of("s2", endpoint("triton-b", "10.0.0.2")))
        await has("triton-a", "triton-b")

        # What the watch would go on from is forgotten by etcd, and by the server's own cache.
        await asyncio.to_thread(api.apply, slice_of("s3", endpoint("triton-c", "10.0.0.3")))
        await has("triton-a", "triton-b", "triton-c")
        await asyncio.to_thread(api.delete, "EndpointSlice", "s3")
        await asyncio.to_thread(api.stop)
        await asyncio.to_thread(api.compact)
        await asyncio.to_thread(api.start)
        await asyncio.to_thread(api.apply, slice_of("s1", endpoint("triton-a", "10.0.0.1", ready=False, serving=True, terminating=True)))
        await asyncio.to_thread(api.apply, slice_of("s3", endpoint("triton-d", "10.0.0.4")))
        await has("triton-b", "triton-d")


async def test_a_version_that_is_forgotten_is_said_to_be_gone(api: RealApi) -> None:
    path = "/apis/discovery.k8s.io/v1/namespaces/tidegate/endpointslices"
    ours = client(api)
    _, version = await ours.list_all(path)
    for number in range(3):
        await asyncio.to_thread(api.apply, slice_of(f"s{number}", endpoint("triton-a", f"10.0.0.{number}")))
    await asyncio.to_thread(api.stop)
    await asyncio.to_thread(api.compact)
    await asyncio.to_thread(api.start)
    with pytest.raises(Gone):
        async for _ in ours.watch(path, "", version):
            pass
    await ours.close()
