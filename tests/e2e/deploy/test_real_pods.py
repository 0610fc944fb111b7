"""`make deploy ENV=local` against a real API server, controllers and scheduler, with pods that are processes: gateways,
Tritons with their nodes and Redis, each in a network namespace, found by EndpointSlices that a controller writes.

The cases build on each other: one deployment, in the order of the file. `KUBERNETES_OUTAGE_S=600` has the API server away for as long.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import httpx
import pytest
import yaml

from deploy.deployment import Console, Deployment
from deploy.kubectl import Kubectl
from deploy.manifests import Rendered
from deploy.smoke import MAKE_KEY
from perf.chaos.way import Way
from tests.e2e.deploy.pod_network import Network, may_have_namespaces
from tests.e2e.deploy.process_kubelet import Object, ProcessPod, kubelet
from tests.e2e.deploy.real_cluster import RealCluster, add_volume, real_cluster
from tests.e2e.fleets import write_models
from tests.e2e.tidegate import wait_for
from tests.kubernetes_api import model_resource
from tests.real_kubernetes import CONTROLLERS, WHY_NO_CONTROLLERS, is_there
from tests.unit.deploy.rendered import Case, render

OUTAGE_S = float(os.environ.get("KUBERNETES_OUTAGE_S", "20"))
"""Longer than the gateway's lease, and than a look at its Tritons. Of 600 s etcd has compacted what the watches knew."""

pytestmark = [
    pytest.mark.skipif(not is_there(*CONTROLLERS), reason=WHY_NO_CONTROLLERS),
    pytest.mark.skipif(not may_have_namespaces(), reason="network namespaces take root and ip"),
    pytest.mark.timeout(900 + OUTAGE_S),
]
SOON_S = 150.0
"""Far more than anything here takes, with all of Kubernetes and Tritons on one busy machine."""
BODY = {"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}


@dataclass
class Bench:
    """The cluster, its pods by name, and what callers got."""

    cluster: RealCluster
    pods: dict[str, ProcessPod]
    said: list[str] = field(default_factory=list)
    key: str = ""

    def deploy(self) -> None:
        objects = render(Case("local", ("lease", "model-resources")))
        console = Console(say=self.said.append, ask=lambda question: True)
        Deployment(Kubectl(), Rendered(yaml.safe_dump_all(objects), objects), console, wait_s=SOON_S, model="m1").deploy()

    def of(self, workload: str) -> list[ProcessPod]:
        """Its pods that do not end, as the API server lists them."""
        listed = self.cluster.api.all("Pod", f"app.kubernetes.io/name={workload}")
        return [self.pods[it["metadata"]["name"]] for it in listed if "deletionTimestamp" not in it["metadata"]]

    def ask(self, model: str = "m1", *, through: ProcessPod | None = None) -> int:
        """Send one request to a gateway's pod, and return its status."""
        pod = through or self.of("tidegate")[0]
        headers = {"authorization": f"Bearer {self.key}"}
        url = f"http://{pod.address}:8000/v2/models/{model}/infer"
        return httpx.post(url, json=BODY, headers=headers, trust_env=False, timeout=60.0).status_code

    def reasons(self, model: str) -> list[str]:
        held = self.cluster.api.get("Model", model) or {}
        return [each["reason"] for each in (held.get("status") or {}).get("conditions", ())]

    def logs(self) -> str:
        return "\n".join(f"== {name}\n{pod.log.read_text()[-3000:]}" for name, pod in self.pods.items())


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("c")
    write_models(folder / "models", ("m1", "m2", "m3"))
    with ExitStack() as ends:
        network = Network(int(time.time()) % 9000)
        ends.callback(network.close)
        cluster = ends.enter_context(real_cluster(folder, network.gateway))
        patch = ends.enter_context(pytest.MonkeyPatch.context())
        for name in ("KUBECONFIG", "PATH"):
            patch.setenv(name, cluster.environment[name])
        add_volume(cluster.api, "redis")
        it, way = Bench(cluster, {}), Way(8000)
        ends.callback(way.close)

        def start(pod: Object) -> ProcessPod:
            made = ProcessPod(pod, cluster.api, network, folder / f"p{len(it.pods)}", folder / "models")
            it.pods[made.name] = made
            if pod["metadata"]["labels"]["app.kubernetes.io/name"] == "tidegate":
                way.target_host = made.address
                cluster.forward(way.port, made.words([sys.executable, "-m", "control_plane"]), made.variables())
            return made

        ends.callback(lambda: [pod.kill() for pod in it.pods.values()])
        running = ends.enter_context(kubelet(cluster.api, start))
        try:
            it.deploy()
            lasting = [f"{OUTAGE_S + 3600:.0f}s" if word == "600s" else word for word in MAKE_KEY]
            it.key = cluster.kubectl("exec", "deployment/gateway", "--", *lasting).strip()
        except Exception as exc:
            raise AssertionError(it.logs()) from exc
        yield it
        assert running.faults == []


@contextmanager
def asking(bench: Bench) -> Iterator[list[int]]:
    """Ask a gateway all the time, and collect the answers' statuses."""
    answers: list[int] = []
    is_over = threading.Event()
    (gateway, *_) = bench.of("tidegate")

    def ask() -> None:
        while not is_over.is_set():
            answers.append(bench.ask(through=gateway))

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(ask)
        try:
            wait_for(lambda: len(answers) > 5)
            yield answers
            seen = len(answers)
            wait_for(lambda: len(answers) > seen + 5)
        finally:
            is_over.set()
        done.result()


def test_it_is_deployed_and_answers(bench: Bench) -> None:
    assert bench.said[-1].startswith("m1 answered with")
    (triton,) = bench.of("triton")
    (found,) = bench.cluster.api.all("EndpointSlice", "kubernetes.io/service-name=triton")
    assert [each["addresses"] for each in found["endpoints"]] == [[triton.address]]
    assert {each["name"]: each["port"] for each in found["ports"]} == {"http": 8000, "grpc": 8001, "metrics": 8002, "node": 8500}
    lease = bench.cluster.api.get("Lease", "tidegate")
    assert lease is not None
    assert lease["spec"]["holderIdentity"]


def test_a_second_time_nothing_changes(bench: Bench) -> None:
    bench.said.clear()
    bench.deploy()
    assert bench.said[0] == "nothing changes"
    assert bench.said[-1].startswith("m1 answered with")


def test_a_model_is_loaded_by_kubectl(bench: Bench) -> None:
    bench.cluster.kubectl("apply", "--filename=-", given=[model_resource("m2", min_replicas=1)])
    bench.cluster.kubectl("wait", "--namespace=tidegate", "--for=condition=Ready", "model/m2", "--timeout=120s")
    assert bench.reasons("m2") == ["Applied", "Loaded"]
    bench.cluster.kubectl("delete", "--namespace=tidegate", "model/m2")


def test_no_request_fails_while_tritons_are_replaced(bench: Bench) -> None:
    before = bench.of("triton")
    with asking(bench) as answers:
        bench.cluster.kubectl("rollout", "restart", "deployment/triton", "--namespace=tidegate")
        bench.cluster.kubectl("rollout", "status", "deployment/triton", "--namespace=tidegate", "--timeout=280s")
        wait_for(lambda: len(bench.cluster.api.all("Pod", "app.kubernetes.io/name=triton")) == 1, timeout_s=SOON_S)
    assert set(answers) == {200}
    assert bench.of("triton") != before
    assert all("0 connections are left" in each.log.read_text() for each in before)


def test_requests_are_served_while_the_api_server_is_away(bench: Bench) -> None:
    with asking(bench) as answers:
        bench.cluster.api.stop()
        time.sleep(OUTAGE_S)
        bench.cluster.api.start()
        bench.cluster.kubectl("scale", "deployment/triton", "--namespace=tidegate", "--replicas=2")
        bench.cluster.kubectl("rollout", "status", "deployment/triton", "--namespace=tidegate", "--timeout=280s")
        bench.cluster.kubectl("apply", "--filename=-", given=[{**model_resource("m3"), "spec": {"everywhere": True}}])
        bench.cluster.kubectl("wait", "--namespace=tidegate", "--for=jsonpath={.status.replicas}=2", "model/m3", "--timeout=280s")
    assert set(answers) == {200}
