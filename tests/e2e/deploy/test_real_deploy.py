"""`make deploy` against a real API server, controllers and scheduler, with pods of which nothing runs: each overlay into a
namespace with `enforce=restricted`, what a second run changes, evictions, and replicas that an autoscaler owns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.deployment import Console, Deployment
from deploy.kubectl import Kubectl
from deploy.manifests import Rendered
from tests.e2e.deploy.process_kubelet import HollowPod, kubelet
from tests.e2e.deploy.real_cluster import RealCluster, add_volume, images, real_cluster
from tests.e2e.tidegate import wait_for
from tests.http_server import http_server
from tests.real_kubernetes import CONTROLLERS, WHY_NO_CONTROLLERS, is_there
from tests.unit.deploy.rendered import OVERLAYS, Case, render
from tests.unit.deploy.test_deployment import Gateway

pytestmark = [pytest.mark.skipif(not is_there(*CONTROLLERS), reason=WHY_NO_CONTROLLERS), pytest.mark.timeout(900)]

GATEWAYS = "app.kubernetes.io/component=gateway"
TRITONS = "app.kubernetes.io/component=triton"


@dataclass
class Bench:
    """The cluster; pods whose names are in `unready` are not ready."""

    cluster: RealCluster
    unready: set[str] = field(default_factory=set)

    def names(self, selector: str) -> list[str]:
        return sorted(it["metadata"]["name"] for it in self.cluster.api.all("Pod", selector) if "deletionTimestamp" not in it["metadata"])

    def ready(self, selector: str) -> int:
        def is_ready(it: Any) -> bool:
            return {"type": "Ready", "status": "True"}.items() <= next(
                (each.items() for each in it["status"].get("conditions", ()) if each["type"] == "Ready"), {}.items()
            )

        return sum(map(is_ready, self.cluster.api.all("Pod", selector)))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with http_server(Gateway().answer) as url, real_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        it = Bench(cluster)
        cluster.forward(int(url.rpartition(":")[2]), ["echo", "a-key"])
        models = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "models"}}
        cluster.kubectl("apply", "--filename=-", given=[models])
        with kubelet(cluster.api, lambda pod: HollowPod(pod, it.unready)) as running:
            yield it
            assert running.faults == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_deployed_once_and_taken_down(bench: Bench, overlay: str) -> None:
    add_volume(bench.cluster.api, f"redis-{overlay}")
    triton = [] if overlay == "attached" else ["tidegate-triton"]
    words = images("tidegate-gateway", "redis", *triton)
    first = bench.cluster.deploy("deploy", overlay, words)
    assert first.returncode == 0, (first.stdout, first.stderr)
    assert "m answered with" in first.stdout
    privileged = bench.cluster.api.admin.post(
        "/api/v1/namespaces/tidegate/pods",
        json={"metadata": {"name": "x"}, "spec": {"hostNetwork": True, "containers": [{"name": "x", "image": "x"}]}},
    )
    assert (privileged.status_code, "violates PodSecurity" in privileged.text) == (403, True)

    again = bench.cluster.deploy("deploy", overlay, words)
    assert again.returncode == 0, (again.stdout, again.stderr)
    assert "nothing changes" in again.stdout, again.stdout

    kept = bench.cluster.deploy("undeploy", overlay, words)
    assert kept.returncode == 0, (kept.stdout, kept.stderr)
    assert bench.names("app.kubernetes.io/name") == []
    assert bench.cluster.kubectl("get", "persistentvolumeclaims,secrets", "--namespace=tidegate", "--output=name").count("\n") >= 3
    gone = bench.cluster.deploy("undeploy", overlay, words, "--volumes=delete")
    assert gone.returncode == 0, (gone.stdout, gone.stderr)
    assert bench.cluster.api.get("Namespace", "tidegate") is None


@pytest.fixture
def scaled(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """The overlay of shared GPUs, whose Tritons an autoscaler owns."""
    for name in ("KUBECONFIG", "PATH"):
        monkeypatch.setenv(name, bench.cluster.environment[name])
    add_volume(bench.cluster.api, tmp_path.name.replace("_", "-"))
    objects = render(Case("gpu-shared", ("hpa",)))
    console = Console(say=lambda text: None, ask=lambda question: True)
    it = Deployment(Kubectl(), Rendered(yaml.safe_dump_all(objects), objects), console, wait_s=280.0)
    it.deploy()
    yield it
    it.undeploy(with_volumes=True)


def test_replicas_that_an_autoscaler_owns_stay(bench: Bench, scaled: Deployment) -> None:
    assert len(bench.names(TRITONS)) == 1
    bench.cluster.kubectl("scale", "deployment/triton", "--namespace=tidegate", "--replicas=5")
    wait_for(lambda: bench.ready(TRITONS) == 5)
    said: list[str] = []
    again = Deployment(scaled.kubectl, scaled.rendered, Console(say=said.append, ask=lambda question: True), wait_s=280.0)
    again.deploy()
    assert "nothing changes" in said
    assert len(bench.names(TRITONS)) == bench.ready(TRITONS) == 5


def test_evictions_respect_the_budgets(bench: Bench, scaled: Deployment) -> None:
    bench.cluster.kubectl("scale", "deployment/triton", "--namespace=tidegate", "--replicas=3")
    wait_for(lambda: bench.ready(TRITONS) == 3)
    for selector in (GATEWAYS, TRITONS):
        one, other, *_ = bench.names(selector)
        wait_for(lambda one=one: bench.cluster.api.evict(one) == 201)  # once the controller has seen them all
        bench.unready |= set(bench.names(selector)) - {other}
        assert bench.cluster.api.evict(other) == 429, "another one is away"
        bench.unready.clear()
        wait_for(lambda other=other: bench.cluster.api.evict(other) == 201)
