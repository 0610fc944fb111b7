"""`make deploy` and `make undeploy` against a scripted `kubectl`, which renders with the real one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.__main__ import main
from deploy.deployment import Console, Deployment
from deploy.errors import DeployError
from deploy.kubectl import Kubectl
from deploy.manifests import Rendered
from deploy.smoke import MAKE_KEY
from tests.http_server import AskedRequest, http_server
from tests.unit.deploy import fake_kubectl
from tests.unit.deploy.gpu_deployment import on_gpus
from tests.unit.deploy.rendered import Case, kubectl, render

DIGEST = f"sha256:{'ab' * 32}"
IMAGES = " ".join(f"{name}=registry.test/{name}@{DIGEST}" for name in ("tidegate-gateway", "tidegate-triton", "redis"))


class Gateway:
    """A gateway with one model that is loaded."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = dict(ANSWERS)
        self.heard: list[tuple[str, str | None, Any]] = []

    def answer(self, asked: AskedRequest) -> None:
        self.heard.append((asked.path, asked.headers.get("authorization"), json.loads(asked.body) if asked.body else None))
        status, said = self.answers[asked.path]
        asked.answer(status, b"" if said is None else said)


TENSORS = [{"name": "A", "datatype": "FP32", "shape": [-1, 2]}, {"name": "B", "datatype": "BYTES", "shape": [1]}]
ANSWERS: dict[str, tuple[int, Any]] = {
    "/v2/health/ready": (200, None),
    "/v2/repository/index": (200, [{"name": "cold"}, {"name": "m", "version": "1", "state": "READY"}]),
    "/v2/models/m": (200, {"inputs": TENSORS}),
    "/v2/models/m/infer": (200, {"outputs": [{"name": "OUT"}]}),
}


@dataclass
class Cluster:
    """The fake's state, and what was called."""

    folder: Path
    capsys: pytest.CaptureFixture[str]
    said: str = ""
    told: str = ""
    gateway: Gateway = field(default_factory=Gateway)
    state: dict[str, Any] = field(default_factory=dict)

    def has(self, **changes: Any) -> None:
        """Change the state."""
        self.state = {**json.loads((self.folder / "cluster.json").read_text()), **changes}
        (self.folder / "cluster.json").write_text(json.dumps(self.state))

    def run(self, *words: str) -> int:
        (self.folder / "calls.jsonl").write_text("")
        status = main(list(words))
        read = self.capsys.readouterr()
        self.said, self.told = read.out, read.err
        return status

    def calls(self, name: str) -> list[dict[str, Any]]:
        lines = map(json.loads, (self.folder / "calls.jsonl").read_text().splitlines())
        return [each for each in lines if each["words"][0] == name]

    @property
    def objects(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "cluster.json").read_text())["objects"]
        return found


@pytest.fixture(scope="module")
def renderings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("renderings")


@pytest.fixture
def cluster(tmp_path: Path, renderings: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cluster]:
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    it = Cluster(tmp_path, capsys)
    with http_server(it.gateway.answer) as url, fake_kubectl.serving(tmp_path) as port:
        start = {"objects": {}, "applied": {}, "failures": {}, "pods": [], "nodes": [], "port": int(url.rpartition(":")[2])}
        (tmp_path / "cluster.json").write_text(json.dumps({**start, "available": 9, "knows_image_volumes": True}))
        program.write_text(fake_kubectl.PROGRAM.format(renderings=renderings, real=kubectl(), port=port))
        program.chmod(0o755)
        yield it


def deployed(cluster: Cluster, environment: str = "local", *more: str) -> int:
    return cluster.run("deploy", environment, "--images", IMAGES, "--yes", "--wait-s", "0", *more)


def test_the_first_time_it_makes_the_namespace_the_secrets_and_everything(cluster: Cluster) -> None:
    assert deployed(cluster) == 0, cluster.told
    assert "cluster: kind-test" in cluster.said
    assert "+ deployment/triton" in cluster.said
    assert "+ secret/tidegate-state, with a new password" in cluster.said
    assert "m answered with OUT" in cluster.said
    first, second = cluster.calls("apply")
    assert [line.startswith("kind: Namespace") for line in first["given"].splitlines() if line.startswith("kind:")] == [True]
    assert first["words"] == second["words"] == ["apply", "--server-side", "--field-manager=tidegate-deploy", "--filename=-"]
    for name, container in (("gateway", "tidegate-gateway"), ("triton", "tidegate-triton")):
        (found,) = cluster.objects[f"deployment/{name}"]["spec"]["template"]["spec"]["containers"]
        assert found["image"] == f"registry.test/{container}@{DIGEST}"


def test_a_second_time_nothing_changes(cluster: Cluster) -> None:
    assert deployed(cluster) == 0
    secret = cluster.objects["secret/tidegate-state"]
    assert deployed(cluster) == 0
    assert "nothing changes" in cluster.said
    assert cluster.calls("apply") == cluster.calls("create") == []
    assert cluster.objects["secret/tidegate-state"] == secret
    assert "m answered" in cluster.said


def test_passwords_are_never_arguments_and_both_sides_have_the_same(cluster: Cluster) -> None:
    assert deployed(cluster) == 0
    url = cluster.objects["secret/tidegate-state"]["stringData"]["state-url"]
    password = url.removeprefix("redis://tidegate:").partition("@")[0]
    assert len(password) >= 40
    assert sha256(password.encode()).hexdigest() in cluster.objects["secret/tidegate-redis"]["stringData"]["users.acl"]
    every_word = [word for line in (cluster.folder / "calls.jsonl").read_text().splitlines() for word in json.loads(line)["words"]]
    assert not any(password in word or "tg_a.secret" in word for word in every_word)
    assert password not in cluster.said + cluster.told


def test_the_request_is_a_clients(cluster: Cluster) -> None:
    assert deployed(cluster) == 0
    (made,) = cluster.calls("exec")
    assert made["words"] == ["exec", "--namespace=tidegate", "deployment/gateway", "--container=gateway", "--", *MAKE_KEY]
    assert {key for _, key, _ in cluster.gateway.heard} == {"Bearer tg_a.secret"}
    path, _, body = cluster.gateway.heard[-1]
    inputs = [
        {"name": "A", "datatype": "FP32", "shape": [1, 2], "data": [0, 0]},
        {"name": "B", "datatype": "BYTES", "shape": [1], "data": [""]},
    ]
    assert (path, body) == ("/v2/models/m/infer", {"inputs": inputs})


def test_without_a_loaded_model_the_list_is_the_request_and_a_model_can_be_named(cluster: Cluster) -> None:
    cluster.gateway.answers["/v2/repository/index"] = (200, [{"name": "m"}])
    assert deployed(cluster) == 0
    assert "lists 1 models of its Tritons, none of which is loaded" in cluster.said
    assert deployed(cluster, "local", "--model", "m") == 0
    assert "m answered with OUT" in cluster.said


def test_a_request_that_is_refused_fails_the_deployment(cluster: Cluster) -> None:
    cluster.gateway.answers["/v2/models/m/infer"] = (503, {"error": "no room"})
    assert deployed(cluster) == 1
    assert 'POST /v2/models/m/infer was answered with 503: {"error": "no room"}' in cluster.told
    assert "next: `kubectl logs deployment/gateway`" in cluster.told


def test_nothing_is_applied_without_a_yes(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert cluster.run("deploy", "local", "--images", IMAGES) == 1
    assert "nothing was applied" in cluster.told
    assert cluster.objects == {}
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    assert cluster.run("deploy", "local", "--images", IMAGES) == 1
    assert "next: YES=1" in cluster.told
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: "y")
    assert cluster.run("deploy", "local", "--images", IMAGES) == 0


def test_images_without_a_digest_are_refused_by_name(cluster: Cluster) -> None:
    assert cluster.run("deploy", "gpu", "--yes") == 1
    assert "deployment/gateway: registry.example/tidegate-gateway is not named by a digest" in cluster.told
    assert "components/images/kustomization.yaml, or say IMAGES=tidegate-gateway=" in cluster.told
    assert cluster.run("deploy", "gpu", "--yes", "--images", "redis=redis:7") == 1
    assert "'redis=redis:7' names no image by digest" in cluster.told
    assert cluster.run("deploy", "gpu", "--yes", "--images", f"rabbit=r/r@{DIGEST}") == 1
    assert "no image of this overlay is called 'rabbit'" in cluster.told
    assert cluster.objects == {}


def test_an_overlay_that_is_not_there_is_told_with_those_that_are(cluster: Cluster) -> None:
    assert cluster.run("deploy", "gpus") == 1
    assert "there is no overlay 'gpus'" in cluster.told
    assert "attached, gpu, gpu-shared, local" in cluster.told


@pytest.mark.parametrize(
    ("said", "next_step"),
    [
        ('no matches for kind "PodMonitor"', "leave out the component"),
        ("Apply failed with 1 conflict: conflict with kubectl-edit", "put their value into your overlay"),
        ("deployments.apps is forbidden: User x cannot patch", "your account may not do this"),
    ],
)
def test_what_kubectl_refuses_comes_with_the_next_step(cluster: Cluster, said: str, next_step: str) -> None:
    cluster.has(failures={"apply": said})
    assert deployed(cluster) == 1
    assert f"`kubectl apply` failed: {said}" in cluster.told
    assert next_step in cluster.told


def test_a_cluster_that_is_away(cluster: Cluster) -> None:
    cluster.has(failures={"get": "The connection to the server localhost:8080 was refused"})
    assert deployed(cluster) == 1
    assert "was refused" in cluster.told


def pod(name: str, **status: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": name}, "status": status}


def test_when_the_time_is_over_it_says_which_pod_and_why(cluster: Cluster) -> None:
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: 3 Insufficient nvidia.com/gpu"}
    pulling = {"name": "gateway", "ready": False, "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}
    cluster.has(available=0, pods=[pod("triton-1", conditions=[unplaced]), pod("gateway-1", containerStatuses=[pulling])])
    assert deployed(cluster) == 1
    assert "deployment/triton: 0 of 1 pods are available" in cluster.told
    assert "pod/triton-1: Unschedulable: 0/3 nodes: 3 Insufficient nvidia.com/gpu\n  next: no node has room" in cluster.told
    assert "pod/gateway-1 container gateway: ImagePullBackOff not found\n  next: check the image's name and digest" in cluster.told
    assert cluster.calls("exec") == [], "no request goes to what is not there"


def test_a_secret_that_only_its_owner_can_make_is_asked_for(cluster: Cluster) -> None:
    assert deployed(cluster) == 0
    objects = cluster.objects
    del objects["secret/tidegate-redis"]
    cluster.has(objects=objects)
    assert deployed(cluster) == 1
    assert "secret/tidegate-redis is missing while secret/tidegate-state is there: they hold two sides of one password" in cluster.told
    assert cluster.calls("apply") == []


@pytest.mark.parametrize(("gpus", "is_refused"), [(4, True), (3, True), (5, False), (0, False)])
def test_a_surge_without_a_free_gpu_is_refused_by_name(cluster: Cluster, gpus: int, is_refused: bool) -> None:
    cluster.has(nodes=[{"status": {"allocatable": {"nvidia.com/gpu": str(gpus)}}}, {"status": {}}])
    it = Deployment(Kubectl(), Rendered("", on_gpus({"maxSurge": 1})), Console(say=lambda _: None, ask=lambda _: True))
    if is_refused:
        with pytest.raises(
            DeployError, match=rf"deployment/triton: its strategy .* {gpus} nvidia.com/gpu for its 4\nnext: add the component in-place"
        ):
            it.require_room_for_surges()
    else:
        it.require_room_for_surges()


def test_overlays_with_gpus_update_in_place(cluster: Cluster) -> None:
    cluster.has(nodes=[{"status": {"allocatable": {"nvidia.com/gpu": "2"}}}])
    assert deployed(cluster, "gpu") == 0, cluster.told


def deployed_by_hand(case: Case) -> None:
    objects = render(case)
    console = Console(say=lambda _: None, ask=lambda _: True)
    Deployment(Kubectl(), Rendered(yaml.safe_dump_all(objects), objects), console, wait_s=0.0).deploy()


def test_an_autoscaler_begins_with_as_many_replicas_as_there_are_and_then_has_the_say(cluster: Cluster) -> None:
    scaled = Case("gpu", ("monitoring", "keda"))
    deployed_by_hand(Case("gpu"))
    deployed_by_hand(scaled)
    objects = cluster.objects
    assert objects["deployment/triton"]["spec"]["replicas"] == 2, "what is given no more would be one"

    objects["deployment/triton"]["spec"]["replicas"] = 7
    objects["deployment/triton"]["metadata"]["managedFields"] = [{"manager": "kube-controller-manager", "subresource": "scale"}]
    cluster.has(objects=objects)
    deployed_by_hand(scaled)
    (triton,) = [
        each
        for each in yaml.safe_load_all(cluster.calls("apply")[-1]["given"])
        if (each["kind"], each["metadata"]["name"]) == ("Deployment", "triton")
    ]
    assert "replicas" not in triton["spec"]


def test_a_nodes_secret_is_made_anew_by_itself(cluster: Cluster) -> None:
    assert deployed(cluster) == 0
    objects = cluster.objects
    before = objects.pop("secret/tidegate-node")["stringData"]["secret"]
    assert len(before) >= 32
    cluster.has(objects=objects)
    assert deployed(cluster) == 0
    assert cluster.objects["secret/tidegate-node"]["stringData"]["secret"] != before
    assert cluster.objects["secret/tidegate-state"] == objects["secret/tidegate-state"]


def test_undeploying_leaves_volumes_and_secrets_unless_told_otherwise(cluster: Cluster) -> None:
    assert deployed(cluster) == 0
    assert cluster.run("undeploy", "local", "--yes") == 0
    assert cluster.objects.keys() == {"namespace/tidegate", "secret/tidegate-node", "secret/tidegate-redis", "secret/tidegate-state"}
    assert "left: namespace/tidegate, its volumes and its Secrets" in cluster.said
    assert cluster.run("undeploy", "local", "--yes", "--volumes", "delete") == 0
    assert "namespace/tidegate" not in cluster.objects


@pytest.mark.parametrize("ends", [True, False])
def test_undeploying_waits_for_pods_and_not_for_ever(cluster: Cluster, ends: bool) -> None:
    cluster.has(pods=[{"metadata": {"name": "triton-0"}}])
    said: list[str] = []
    slept_s: list[float] = []

    def sleep(seconds: float) -> None:
        slept_s.append(seconds if ends else 100.0)
        if ends and len(slept_s) == 3:
            cluster.has(pods=[])

    rendered = Rendered("", render(Case("local")))
    it = Deployment(Kubectl(), rendered, Console(said.append, lambda _: True), now_s=lambda: sum(slept_s), sleep=sleep)
    if ends:
        it.undeploy(with_volumes=False)
        assert len(slept_s) == 3
    else:
        with pytest.raises(DeployError, match=r"after 300 s still ending: pod/triton-0.*\nnext: is a node of theirs lost"):
            it.undeploy(with_volumes=False)
    assert sum("waiting until they end: pod/triton-0" in line for line in said) == 1


@pytest.mark.parametrize("with_volumes", [False, True])
def test_undeploying_never_takes_the_clusters_models_with_it(cluster: Cluster, with_volumes: bool) -> None:
    rendered = render(Case("local", ("model-resources",)))
    said: list[str] = []
    it = Deployment(Kubectl(), Rendered("", rendered), Console(said.append, lambda _: True))
    it.undeploy(with_volumes=with_volumes)
    (deleted,) = [each["given"] for each in cluster.calls("delete")]
    assert "kind: Deployment" in deleted
    assert "CustomResourceDefinition" not in deleted
    assert any("left: customresourcedefinition/models.tidegate.io" in line for line in said)


def test_make_passes_its_variables_on() -> None:
    words = [
        "make",
        "--dry-run",
        "deploy",
        "ENV=gpu",
        "YES=1",
        "MODEL=m",
        "CONTEXT=c",
        f"IMAGES=redis=r/r@{DIGEST}",
        "--old-file=.venv/.serve",
    ]
    printed = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    assert f'.venv/bin/python -m deploy deploy "gpu" --images "redis=r/r@{DIGEST}" --context "c" --yes  --model "m"' in printed
