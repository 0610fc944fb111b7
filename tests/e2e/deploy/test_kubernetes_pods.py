"""What runs in the pods of deploy/kubernetes: the gateway's container with its own arguments, variables and probes
against a real Triton that a scripted API server tells of, Redis' with its configuration and probe, the preStop hook.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.images.is_alive import main as is_alive
from deploy.images.wait_until_drained import TABLES, connected
from tests.e2e import tidegate as servers
from tests.e2e.deploy.pods import OBJECTS, Redis, cluster, redis, run_hook, slice_of, start_triton
from tests.e2e.fleets import answer_of, write_models
from tests.e2e.nodes import RunningNode
from tests.e2e.raw_http import exchange, status
from tests.e2e.tidegate import LONG_S, Tidegate, wait_for
from tests.kubernetes_api import ScriptedApi, endpoint, model_resource
from tests.redis_server import free_port
from tests.tls_files import needs_openssl
from tests.unit.deploy.rendered import containers, named, pod_spec

__all__ = ["redis"]


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
