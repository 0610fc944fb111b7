"""What runs in the pods of deploy/kubernetes: the gateway's container with its own arguments, variables and probes
against a real Triton that a scripted API server tells of, Redis' with its configuration and probe, the preStop hook.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.images.is_alive import main as is_alive
from deploy.images.wait_until_drained import TABLES, connected
from deploy.secrets import make_secrets
from tests.e2e import tidegate as servers
from tests.e2e.fleet.test_fleet import answer_of, write_models
from tests.e2e.nodes import RunningNode, free_ports
from tests.e2e.raw_http import exchange, status
from tests.e2e.tidegate import COMPLETE, LONG_S, Tidegate, run_cli, wait_for
from tests.kubernetes_api import ScriptedApi, api_in_a_thread, endpoint, endpoint_slice, model_resource, rules_of, write_account
from tests.redis_server import free_port
from tests.tls_files import Authority, needs_openssl
from tests.unit.deploy.rendered import Case, containers, env, named, pod_spec, render

IN_POD = "/run/secrets/tidegate/state-url"
RIGHTS = ("base/gateway/discovery.yaml", "components/lease/rights.yaml", "components/model-resources/rights.yaml")
OBJECTS = render(Case("local", ("lease", "model-resources")))


@dataclass
class Redis:
    """The Redis of the component, on a free port, and what `make deploy` makes for it."""

    process: subprocess.Popen[bytes]
    port: int
    state_url: str

    def probe(self, words: list[str]) -> int:
        """Run a probe's command, which asks the container's own port."""
        program, *rest = words
        return subprocess.run([program, "-p", str(self.port), *rest], capture_output=True, timeout=60).returncode


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    folder = tmp_path_factory.mktemp("redis")
    (container,) = containers(named(OBJECTS, "StatefulSet", "redis"))
    volume = next(each for each in pod_spec(named(OBJECTS, "StatefulSet", "redis"))["volumes"] if each["name"] == "config")
    made = make_secrets(lambda: "a-password")
    (folder / "users.acl").write_text(made["tidegate-redis"]["users.acl"])
    config = named(OBJECTS, "ConfigMap", volume["configMap"]["name"])["data"]["redis.conf"]
    own = config.replace("/run/secrets/redis/", f"{folder}/").replace("dir /data", f"dir {folder}")
    assert own.count(str(folder)) == 2
    (folder / "redis.conf").write_text(own)
    port = free_port()
    assert (container["command"], container["args"]) == (["redis-server"], ["/etc/redis/redis.conf"])
    process = subprocess.Popen([*container["command"], str(folder / "redis.conf"), "--port", str(port)], stdout=subprocess.DEVNULL)
    url = made["tidegate-state"]["state-url"].replace("@redis:6379", f"@127.0.0.1:{port}")
    assert str(port) in url
    running = Redis(process, port, url)
    wait_for(lambda: running.probe(["redis-cli", "-e", "ping"]) == 0)
    yield running
    process.kill()
    process.wait()


@dataclass
class Pod:
    """The gateway's container, its Triton's, and how to say that the latter's pod ends."""

    gateway: Tidegate
    node: RunningNode
    key: str
    apply: Any
    api: ScriptedApi

    def ask(self, path: str, body: bytes = b"") -> bytes:
        fields = [("authorization", f"Bearer {self.key}")]
        return exchange(self.gateway.port("http"), "POST" if body else "GET", path, body, fields)

    def slice(self, **conditions: bool) -> dict[str, Any]:
        return self.slice_of("triton-0", **conditions)

    def slice_of(self, name: str, **conditions: bool) -> dict[str, Any]:
        return slice_of(self.node, endpoint(name, "127.0.0.1", **conditions), memory_budget="50Mi")


def slice_of(node: RunningNode, *endpoints: object, name: str = "triton-abc12", **labels: str) -> dict[str, Any]:
    """An EndpointSlice with a Triton's ports of this machine."""
    it = endpoint_slice(name, *endpoints, **labels)
    ports = {"http": node.http_port, "grpc": node.grpc_port, "metrics": node.metrics_port, "node": int(node.address.rpartition(":")[2])}
    assert ports.keys() == {port["name"] for port in named(OBJECTS, "Service", "triton")["spec"]["ports"]}
    it["ports"] = [{"name": name, "port": port} for name, port in ports.items()]
    return it


def start_triton(folder: Path, secret: Path, state: str = "triton") -> RunningNode:
    """Start the Triton's container: its own words and variables, but for folders, addresses and ports of this machine."""
    (container,) = containers(named(OBJECTS, "Deployment", "triton"))
    assert container["args"] == ["node"]
    assert env(container)["TIDEGATE_NODE_SECRET_FILE"].endswith("/secret")
    given = {
        **env(container),
        "TIDEGATE_NODE_HOST": "127.0.0.1",
        "TIDEGATE_NODE_TRITON_HOST": "127.0.0.1",
        "TIDEGATE_NODE_SECRET_FILE": str(secret),
        "TIDEGATE_MODEL_REPOSITORY": str(folder / "models"),
        "TIDEGATE_PYTHON_BACKENDS": str(servers.PROJECT / "python_backends"),
        "TIDEGATE_TRITON_ARG": COMPLETE.partition("=")[2],
        "HOME": str(folder),
    }
    del given["TIDEGATE_STATE_DIR"], given["TIDEGATE_TRITONSERVER"]
    http, grpc, metrics = free_ports(3)
    ports = {"NODE": 0, "NODE_TRITON_HTTP": http, "NODE_TRITON_GRPC": grpc, "NODE_TRITON_METRICS": metrics}
    given |= {f"TIDEGATE_{name}_PORT": str(port) for name, port in ports.items()}
    return RunningNode(servers.start_program(folder / state, ("node",), env=given), http, grpc, metrics, ())


@dataclass
class Cluster:
    """A scripted API server, and what containers of it are started with."""

    api: ScriptedApi
    apply: Any
    variables: dict[str, str]
    """Of the gateway's container, with folders and addresses of this machine."""
    key: str
    node_secret: Path


@contextmanager
def cluster(folder: Path, redis: Redis) -> Iterator[Cluster]:
    authority = Authority(folder)
    served = authority.issue("kubernetes")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(served.certificate, served.key)
    account = write_account(folder / "account")
    shutil.copy(authority.certificate, account / "ca.crt")
    (folder / "state-url").write_text(redis.state_url)
    (container,) = containers(named(OBJECTS, "Deployment", "gateway"))
    assert env(container)["TIDEGATE_STATE_URL_FILE"] == IN_POD
    assert container["args"] == ["serve"]
    (folder / "secret").write_text(make_secrets()["tidegate-node"]["secret"])
    with api_in_a_thread(tls) as (api, apply):
        api.rules = [rule for path in RIGHTS for rule in rules_of(path)]
        variables = {
            **env(container),
            "TIDEGATE_STATE_URL_FILE": str(folder / "state-url"),
            "TIDEGATE_NODE_SECRET_FILE": str(folder / "secret"),
            "TIDEGATE_SERVICE_ACCOUNT_DIR": str(account),
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(api.port),
        }
        asked = ("keys", "create", "--tenant", "smoke", "--scope", "infer:*", "--scope", "repository", "--expires", "3600s", "--offline")
        made = run_cli(*asked, env={**variables, "TIDEGATE_STATE_DIR": str(folder / "gateway")})
        assert made.returncode == 0, made.stderr
        yield Cluster(api, apply, variables, made.stdout.strip(), folder / "secret")


@pytest.fixture
def pod(tmp_path: Path, redis: Redis) -> Iterator[Pod]:
    write_models(tmp_path / "models", ("m1", "m2", "m3"))
    with cluster(tmp_path, redis) as it:
        node = start_triton(tmp_path, it.node_secret)
        made = Pod(node.tidegate, node, it.key, it.apply, it.api)
        it.apply(made.slice())
        made.gateway = servers.start(tmp_path / "gateway", env=it.variables)
        yield made
        for each in (made.gateway, node.tidegate):
            each.kill()


def hook() -> tuple[list[str], Path]:
    """The preStop hook's command, and the file here that the image has where it names one."""
    (container,) = containers(named(OBJECTS, "Deployment", "triton"))
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    dockerfile = (servers.PROJECT / "deploy/images/triton.Dockerfile").read_text()
    folder, _, name = command[1].rpartition("/")
    (sources,) = re.findall(rf"^COPY (.+) {re.escape(folder)}/$", dockerfile, re.MULTILINE)
    (source,) = (each for each in sources.split() if each.endswith(f"/{name}"))
    return command, servers.PROJECT / source


def run_hook(node: RunningNode, *, notice_s: float) -> str:
    """Run the hook with its own words, but for this machine's ports and how long it waits at least; return what it said."""
    command, source = hook()
    own = {
        "--notice-s": f"{notice_s:g}",
        "--ports": node.address.rpartition(":")[2],
        "--ports-of-triton": f"{node.http_port},{node.grpc_port}",
    }
    here = {command[1]: str(source), **{word: f"{name}={own[name]}" for word in command if (name := word.partition("=")[0]) in own}}
    words = [here.get(word, word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=True).stdout


@needs_openssl
def test_the_gateways_container_finds_its_triton_answers_its_probes_and_drains(pod: Pod) -> None:
    (container,) = containers(named(OBJECTS, "Deployment", "gateway"))
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert status(exchange(pod.gateway.port("http"), "GET", container[name]["httpGet"]["path"])) == 200
    (of_triton,) = containers(named(OBJECTS, "Deployment", "triton"))
    for name in ("startupProbe", "readinessProbe"):
        assert status(exchange(pod.node.http_port, "GET", of_triton[name]["httpGet"]["path"])) == 200
    command = of_triton["livenessProbe"]["exec"]["command"]
    path = next(word.partition("127.0.0.1:8000")[2] for word in command if word.startswith("--url="))
    asked = [f"--heartbeat={pod.node.tidegate.state_dir / 'heartbeat'}", f"--url=http://127.0.0.1:{pod.node.http_port}{path}"]
    assert is_alive([*asked, *(word for word in command if word.startswith("--at-most-s="))]) == 0
    body = b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1.0]}]}'
    for model in ("m1", "m2", "m3"):  # 24 MiB each, into 50: the budget is that of the Service's label
        assert answer_of(pod.ask(f"/v2/models/{model}/infer", body)) == 1 + int(model[1])
    assert status(exchange(pod.gateway.port("http"), "GET", "/v2/models/m1")) == 401

    # The pod of the Triton ends: the gateway drains it and closes its connections, and then the hook lets it go.
    # Gateway and node are on one machine here, so that only the node's port tells one from the other.
    node_port = int(pod.node.address.rpartition(":")[2])
    assert connected(TABLES, {node_port}) > 0
    pod.apply(pod.slice(ready=False, serving=True, terminating=True))
    begun_s = time.monotonic()
    assert "0 connections are left" in run_hook(pod.node, notice_s=0)
    assert time.monotonic() - begun_s < 195

    # Its successor joins.
    pod.apply(pod.slice_of("triton-1"))
    wait_for(lambda: status(pod.ask("/v2/models/m1/infer", body)) == 200)

    # The gateway's own end: not ready at once, and gone within the grace period.
    grace_s = pod_spec(named(OBJECTS, "Deployment", "gateway"))["terminationGracePeriodSeconds"]
    os.kill(pod.gateway.process.pid, signal.SIGTERM)
    readiness = container["readinessProbe"]["httpGet"]["path"]
    wait_for(lambda: status(exchange(pod.gateway.port("http"), "GET", readiness)) == 503)
    assert pod.gateway.process.wait(timeout=LONG_S) == 0
    assert grace_s >= 40


@needs_openssl
def test_the_gateway_leads_by_its_lease_and_does_as_model_resources_say(pod: Pod) -> None:
    def reasons() -> list[str]:
        return [each["reason"] for each in (pod.api.objects.get("m2", {}).get("status") or {}).get("conditions", ())]

    wait_for(lambda: "tidegate" in pod.api.objects)
    assert pod.api.objects["tidegate"]["kind"] == "Lease"
    pod.apply(model_resource("m2", min_replicas=1))
    wait_for(lambda: reasons() == ["Applied", "Loaded"])
    body = b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1.0]}]}'
    assert answer_of(pod.ask("/v2/models/m2/infer", body)) == 3
    pod.apply({**pod.api.objects["m2"], "spec": {"is_suspended": True}})
    wait_for(lambda: reasons() == ["Applied", "Suspended"])
    assert status(pod.ask("/v2/models/m2/infer", body)) != 200
    assert status(exchange(pod.node.http_port, "POST", "/v2/repository/models/m2/load", b"{}")) == 403, "only the node loads there"


def test_redis_has_users_and_its_probe_needs_none(redis: Redis) -> None:
    (container,) = containers(named(OBJECTS, "StatefulSet", "redis"))
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert redis.probe(container[name]["exec"]["command"]) == 0
    assert redis.probe(["redis-cli", "-e", "get", "x"]) != 0, "who has no password may only ping"
    assert redis.probe(["redis-cli", "-e", "--user", "tidegate", "--pass", "wrong", "get", "x"]) != 0
    assert redis.probe(["redis-cli", "-e", "--user", "tidegate", "--pass", "a-password", "shutdown"]) != 0


def test_the_probe_fails_where_nobody_answers(redis: Redis) -> None:
    (container,) = containers(named(OBJECTS, "StatefulSet", "redis"))
    assert Redis(redis.process, free_port(), "").probe(container["livenessProbe"]["exec"]["command"]) != 0
