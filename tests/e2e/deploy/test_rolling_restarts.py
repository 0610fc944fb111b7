"""Rolling restarts of Tritons and gateways under load, as Kubernetes does them: no request fails.

The containers' own words, hook and probes, with processes of this machine. A Triton's pod starts, is ready, and joins; its
predecessor is marked `terminating`, its preStop hook runs, and then it gets SIGTERM. A gateway's successor joins the
Service; its predecessor gets SIGTERM a moment before the Service's new connections pass it by, as in a cluster. Callers
never send a request a second time. `ROLLING_RESTARTS=20` does as many, of each; `--log-cli-level=INFO` says how far it is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from perf.chaos import models
from perf.chaos.answers import ONCE, REPEATABLE, have_all_answered, said
from perf.chaos.callers import Asked, GrpcCaller, HttpCaller, Timeline, keep_asking
from perf.chaos.way import Way
from tests.aio import run
from tests.e2e import tidegate as servers
from tests.e2e.deploy.pods import OBJECTS, Cluster, Redis, cluster, redis, run_hook, slice_of, start_triton
from tests.e2e.nodes import RunningNode
from tests.e2e.raw_http import exchange, status
from tests.e2e.tidegate import LONG_S, Tidegate, wait_for
from tests.kubernetes_api import endpoint
from tests.tls_files import needs_openssl
from tests.unit.deploy.rendered import containers, named

__all__ = ["redis"]
_log = logging.getLogger(__name__)
RESTARTS = int(os.environ.get("ROLLING_RESTARTS", "1"))
LIMIT_S = 300.0 + 300 * RESTARTS
NOTICE_S = 2.0
"""The manifest's 35 s are for a watch that says nothing; here gateways see a change at once."""
LAG_S = 1.0
"""For which a Service still gives new connections to a pod that ends."""
PAUSE_S = 0.05
"""Seconds that a caller pauses after each answer: it is the restarts that are tested, not the load."""
PROTOCOLS = ("http", "grpc")
KINDS = ((REPEATABLE, models.REPEATABLE_MODEL), (ONCE, models.ONCE_MODEL))


def is_ready(port: int, workload: str) -> bool:
    (container,) = containers(named(OBJECTS, "Deployment", workload))
    try:
        return status(exchange(port, "GET", container["readinessProbe"]["httpGet"]["path"])) == 200
    except OSError:
        return False


class Pods:
    """The pods of a cluster; its methods block."""

    def __init__(self, folder: Path, it: Cluster, ends: ExitStack) -> None:
        self._folder, self._cluster, self._ends = folder, it, ends
        self._count = 0
        self.service = {protocol: Way() for protocol in PROTOCOLS}
        for way in self.service.values():
            ends.callback(way.close)

    def add_triton(self) -> tuple[str, RunningNode]:
        name = self._name("triton")
        node = start_triton(self._folder, self._cluster.node_secret, name)
        self._ends.callback(node.tidegate.kill)
        wait_for(lambda: is_ready(node.http_port, "triton"))
        self._tell(name, node)
        return name, node

    def end_triton(self, name: str, node: RunningNode) -> None:
        self._tell(name, node, ready=False, serving=True, terminating=True)
        assert "0 connections are left" in run_hook(node, notice_s=NOTICE_S)
        node.tidegate.process.send_signal(signal.SIGTERM)
        self._await_end(node.tidegate)
        self._cluster.apply(slice_of(node, name=name, memory_budget="100Mi"))

    def add_gateway(self) -> Tidegate:
        gateway = servers.start(self._folder / self._name("gateway"), env=self._cluster.variables)
        self._ends.callback(gateway.kill)
        wait_for(lambda: is_ready(gateway.port("http"), "gateway"))
        for protocol, way in self.service.items():
            way.target_ports.append(gateway.port(protocol))
        return gateway

    async def end_gateway(self, gateway: Tidegate) -> None:
        gateway.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(LAG_S)
        for protocol, way in self.service.items():
            way.target_ports.remove(gateway.port(protocol))
        await asyncio.to_thread(self._await_end, gateway)

    @staticmethod
    def _await_end(program: Tidegate) -> None:
        assert program.process.wait(timeout=LONG_S) == 0, program.said()[-3000:]

    def _tell(self, name: str, node: RunningNode, **conditions: bool) -> None:
        self._cluster.apply(slice_of(node, endpoint(name, "127.0.0.1", **conditions), name=name, memory_budget="100Mi"))

    def _name(self, what: str) -> str:
        self._count += 1
        return f"{what}-{self._count}"


@asynccontextmanager
async def load(pods: Pods, key: str) -> AsyncIterator[Timeline]:
    """Callers over both protocols, of both kinds, from their first answers on."""
    timeline = Timeline()
    async with asyncio.TaskGroup() as tasks:
        asking = []
        for protocol, make in (("http", HttpCaller), ("grpc", GrpcCaller)):
            for kind, model in KINDS:
                caller = make(f"127.0.0.1:{pods.service[protocol].port}", key)
                asking.append(tasks.create_task(keep_asking(timeline, caller, [Asked(kind, model, deadline_s=LONG_S)], pause_s=PAUSE_S)))
        async with asyncio.timeout(LONG_S):
            while not have_all_answered(timeline.answers, [kind for kind, _ in KINDS], 20):
                await asyncio.sleep(0.05)
        yield timeline
        for each in asking:
            each.cancel()


async def restart_all(pods: Pods, key: str) -> Timeline:
    """So many Tritons and gateways, one after the other; two of each serve before, between and after."""
    tritons = [await asyncio.to_thread(pods.add_triton) for _ in range(2)]
    gateways = [await asyncio.to_thread(pods.add_gateway) for _ in range(2)]
    async with load(pods, key) as timeline:
        for number in range(RESTARTS):
            tritons.append(await asyncio.to_thread(pods.add_triton))
            await asyncio.to_thread(pods.end_triton, *tritons.pop(0))
            gateways.append(await asyncio.to_thread(pods.add_gateway))
            await pods.end_gateway(gateways.pop(0))
            _log.info("%d of each: %d requests, failed: %s", number + 1, len(timeline.answers), said(timeline.answers, 0.0))
    return timeline


@needs_openssl
@pytest.mark.timeout(LIMIT_S + 60)
def test_no_request_fails(tmp_path: Path, redis: Redis) -> None:
    models.write(tmp_path / "models", [model for _, model in KINDS])
    with ExitStack() as ends:
        it = ends.enter_context(cluster(tmp_path, redis))
        timeline = run(restart_all(Pods(tmp_path, it, ends), it.key), timeout_s=LIMIT_S)
    assert said(timeline.answers, 0.0) == {}
    assert len(timeline.answers) > 100 * RESTARTS
