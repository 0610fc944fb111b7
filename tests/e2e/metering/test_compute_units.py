"""Compute units are what Triton computed for a tenant: no waiting, no load, nobody else's work; and what was abandoned is in them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from tests.e2e import raw_http
from tests.e2e.accounts import Administrator, make_first_key
from tests.e2e.conftest import MODELS
from tests.e2e.nodes import NODES, fleet_on
from tests.e2e.tidegate import COMPLETE, Tidegate, wait_for

FLAGS = ("--authentication", "--memory-budget", "1GiB", "--load", "echo")
SLEEPER = "slow"
"""Sleeps as many seconds as it is told to, one request at a time."""


@dataclass
class Site:
    """A fleet of one server, whose models are loaded by the first request."""

    gateway: Tidegate
    administrator: Administrator

    def key(self, tenant: str) -> str:
        self.administrator.make_tenant(tenant)
        return self.administrator.make_key(tenant, "infer:*")

    def units(self, *tenants: str) -> list[float]:
        rows = self.administrator.usage()
        return [rows[tenant]["compute_units"] if tenant in rows else 0.0 for tenant in tenants]

    def computed_ms(self) -> float:
        """What Triton says it has computed of the sleeper."""
        answer = raw_http.exchange(
            self.gateway.port("http"), "GET", f"/v2/models/{SLEEPER}/stats", fields=[("x-api-key", self.administrator.key)]
        )
        (model,) = json.loads(answer.partition(b"\r\n\r\n")[2])["model_stats"]
        return float(sum(batch["compute_infer"]["ns"] for batch in model["batch_stats"])) / 1e6


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two workers before a node."""
    root = tmp_path_factory.mktemp("units")
    key = make_first_key(root / "gateway")
    with fleet_on(NODES, root, *FLAGS, "--workers", "2", repository=MODELS, sources=(COMPLETE,), count=1) as (gateway, _):
        yield Site(gateway, Administrator(gateway, key))


def sleep(site: Site, key: str, seconds: float) -> None:
    body = _body(seconds)
    answer = raw_http.exchange(site.gateway.port("http"), "POST", f"/v2/models/{SLEEPER}/infer", body, [("x-api-key", key)], timeout_s=60)
    assert raw_http.status(answer) == 200, answer


def sleep_and_leave(site: Site, key: str, seconds: float) -> None:
    """The caller is gone as soon as it has begun."""
    body = _body(seconds)
    head = f"POST /v2/models/{SLEEPER}/infer HTTP/1.1\r\nHost: x\r\nx-api-key: {key}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with closing(socket.create_connection(("127.0.0.1", site.gateway.port("http")), timeout=30)) as connection:
        connection.sendall(head + body)
        wait_for(lambda: _pending(site) > 0, what="the sleep")


def _pending(site: Site) -> int:
    """Requests that Triton has."""
    answer = raw_http.exchange(site.gateway.port_of_metrics(), "GET", "/metrics", fields=[("x-api-key", site.administrator.key)])
    return sum(line.startswith(b"tidegate_requests_in_flight") and not line.endswith(b" 0") for line in answer.splitlines())


def _body(seconds: float) -> bytes:
    return json.dumps({"inputs": [{"name": "SECONDS", "shape": [1, 1], "datatype": "FP32", "data": [seconds]}]}).encode()


def test_each_pays_for_what_was_computed_for_it(site: Site) -> None:
    first, leaves, behind = (site.key(tenant) for tenant in ("first", "leaves", "behind"))
    wait_for(lambda: all(_knows(site, behind) for _ in range(8)), what="the keys, at either worker", every_s=0.2)
    for _ in range(3):
        sleep(site, first, 0.0)  # the first of them waits for the load
    wait_for(lambda: site.units("first")[0] > 0, timeout_s=30, what="a known cost, of a model that so far is quick")
    computed_ms = site.computed_ms()
    sleep_and_leave(site, leaves, 3.0)
    sleep(site, behind, 1.5)
    wait_for(lambda: min(site.units("first", "leaves", "behind")) > 0, timeout_s=30, what="every charge")
    paid_first, paid_leaves, paid_behind = site.units("first", "leaves", "behind")
    slept_ms = site.computed_ms() - computed_ms
    assert paid_first + paid_leaves + paid_behind == pytest.approx(computed_ms + slept_ms, rel=0.02)
    assert paid_first == pytest.approx(computed_ms, rel=0.02)  # and nothing for the load
    # Alone each pays for its own; if a busy machine looked at Triton's counts only when both had ended, each pays half.
    assert paid_leaves >= 0.99 * slept_ms / 2
    assert 1490.0 <= paid_behind <= 1.01 * slept_ms / 2


def _knows(site: Site, key: str) -> bool:
    answer = raw_http.exchange(site.gateway.port("http"), "GET", "/v2/models/echo", fields=[("x-api-key", key)])
    return raw_http.status(answer) == 200
