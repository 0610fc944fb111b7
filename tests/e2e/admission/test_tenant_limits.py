"""A tenant's limits hold for all processes together: the workers of one gateway, and several gateways over one Redis."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from control_plane.objects.domain.tenant import Tenant
from tests.e2e import raw_http
from tests.e2e import tidegate as servers
from tests.e2e.accounts import LIMIT, TEAM, make_key
from tests.e2e.conftest import Start
from tests.e2e.processes import triton_url
from tests.e2e.tidegate import LONG_S, Tidegate
from tests.redis_server import redis_server

SMALL, BURST_S = Tenant("small", requests_per_s=3.0), 1.2
"""A tenth of a second more than a bucket of three takes to fill."""
LONG_ENOUGH_S = 4.0
"""To tell a limit of three per second from one of each worker."""
BOUNDS = (47.0, 53.0)
FLOOD_S = 3.5
FLOOD_PER_S = 400.0
"""Requests on one connection, at most: eight times the limit is a flood, and CPUs have other things to do."""
SETTLED_S = 1.5
_MEASURED = 4
BODY = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}).encode()


def flood(port: int, key: str) -> tuple[int, int]:
    """On one connection, one request after the other: how many were admitted and refused, without the first seconds."""
    head = f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: localhost\r\nx-api-key: {key}\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
    began_s = time.monotonic()
    counts, sent = {200: 0, 429: 0}, 0
    with closing(socket.create_connection(("127.0.0.1", port), timeout=LONG_S)) as connection:
        while (passed_s := time.monotonic() - began_s) < FLOOD_S:
            connection.sendall(head + BODY)
            status = raw_http.status(raw_http.read_answer(connection))
            counts[status] += passed_s >= SETTLED_S
            sent += 1
            time.sleep(max(0.0, began_s + sent / FLOOD_PER_S - time.monotonic()))
    return counts[200], counts[429]


def per_second(measure: Callable[[], Sequence[tuple[int, int]]]) -> float:
    """The rate that came through, measured again while it is out of bounds: a machine that stands still for a moment shifts it."""
    for _ in range(_MEASURED):
        floods = measure()
        rate = sum(admitted for admitted, _ in floods) / (FLOOD_S - SETTLED_S)
        if all(refused > LIMIT for _, refused in floods) and BOUNDS[0] < rate < BOUNDS[1]:
            break
    assert all(refused > LIMIT for _, refused in floods), f"that was no flood: {floods}"
    return rate


@pytest.fixture(scope="module")
def workers(tidegate: Tidegate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tidegate, dict[str, str]]]:
    """Two of one gateway, and a key of each tenant."""
    folder = tmp_path_factory.mktemp("workers")
    keys = {tenant.name: make_key(None, folder, tenant) for tenant in (TEAM, SMALL)}
    running = servers.start(folder, "--authentication", "--triton-url", triton_url(tidegate), "--workers", "2")
    yield running, keys
    assert running.stop() == 0, running.said()


def test_one_connection_gets_the_rate_though_there_are_two_workers(workers: tuple[Tidegate, dict[str, str]]) -> None:
    running, keys = workers
    rate = per_second(lambda: [flood(running.port("http"), keys["team"])])
    assert BOUNDS[0] < rate < BOUNDS[1]


@dataclass(frozen=True)
class Answer:
    status: int
    fields: dict[str, str]
    said: str


def ask_on_a_connection_of_its_own(port: int, key: str) -> Answer:
    """The kernel chooses the worker."""
    answer = raw_http.exchange(port, "POST", "/v2/models/echo/infer", BODY, [("Authorization", f"Bearer {key}")])
    head, _, body = answer.partition(b"\r\n\r\n")
    fields = dict(line.decode().lower().split(": ", 1) for line in head.split(b"\r\n")[1:])
    return Answer(raw_http.status(answer), fields, body.decode())


def test_a_small_limit_holds_for_all_workers_together(workers: tuple[Tidegate, dict[str, str]]) -> None:
    """Three at once wherever they land, then as many as the rate is, and every word of a refusal is of the whole gateway."""
    running, keys = workers
    port, key = running.port("http"), keys["small"]
    for _ in range(3):
        time.sleep(BURST_S)
        began_s = time.monotonic()
        answers = [ask_on_a_connection_of_its_own(port, key) for _ in range(8)]
        took_s = time.monotonic() - began_s
        statuses = [answer.status for answer in answers]
        assert statuses[:3] == [200, 200, 200], answers
        assert statuses.count(200) <= 3 + 3.0 * took_s
        refused = next(answer for answer in answers if answer.status == 429)
        assert "tenant 'small' may send 3 requests per second" in refused.said
        told = [refused.fields[name] for name in ("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "retry-after")]
        assert told == ["3", "0", "1", "1"]
    began_s, admitted = time.monotonic(), 0
    time.sleep(BURST_S)
    while time.monotonic() - began_s < BURST_S + LONG_ENOUGH_S:
        admitted += ask_on_a_connection_of_its_own(port, key).status == 200
        time.sleep(0.01)
    assert 3 + 3.0 * LONG_ENOUGH_S - 2 <= admitted <= 3 + 3.0 * (time.monotonic() - began_s - BURST_S) + 1


def test_two_gateways_over_one_redis_let_the_rate_through_together(tidegate: Tidegate, start: Start, tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    with redis_server(tmp_path / "redis") as redis, ThreadPoolExecutor() as clients:
        key = make_key(redis.url, tmp_path)
        flags = ("--authentication", "--triton-url", triton_url(tidegate), "--state-url", redis.url)
        gateways = [start(tmp_path / name, *flags) for name in ("one", "other")]
        ports = [gateway.port("http") for gateway in gateways]
        alone = per_second(lambda: [flood(ports[0], key)])
        assert BOUNDS[0] < alone < BOUNDS[1]
        together = per_second(lambda: list(clients.map(flood, ports, [key, key])))
        assert BOUNDS[0] < together < BOUNDS[1]
        for gateway in gateways:
            assert gateway.stop() == 0, gateway.said()
        assert redis.call("EXISTS", "tidegate:demand") == b":0\r\n", "they have left"
