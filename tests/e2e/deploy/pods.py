"""Pods of a gateway as processes, before a Kubernetes API that is real enough for them, and Redis."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.secrets import make_secrets
from tests.e2e import tidegate as servers
from tests.e2e.nodes import RunningNode, free_ports
from tests.e2e.tidegate import COMPLETE, run_cli, wait_for
from tests.kubernetes_api import ScriptedApi, api_in_a_thread, endpoint_slice, rules_of, write_account
from tests.redis_server import free_port
from tests.tls_files import Authority
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
    """Environment of the gateway's container, with folders and addresses of this machine."""
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
