"""A tenant's limits hold for all processes together: the workers of one gateway, and several gateways over one Redis."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from pydantic import SecretStr

from control_plane.adapters.state_store import open_state_store
from control_plane.domain.scope import parse_scope
from control_plane.domain.tenant import Tenant
from control_plane.services.keys import Keys
from control_plane.services.objects import Objects
from tests.e2e import raw_http
from tests.e2e.conftest import MODELS, Start
from tests.e2e.tidegate import LONG_S
from tests.redis_server import redis_server

LIMIT = 50.0
BOUNDS = (35.0, 65.0)
FLOOD_S = 4.0
SETTLED_S = 2.0
FLAGS = ("--authentication", "--model-repository", str(MODELS), "--load", "echo")
BODY = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}).encode()


def make_key(state_url: str | None, state_dir: Path) -> str:
    """The text of a key of a tenant with the limit."""

    async def main() -> str:
        store = await open_state_store(SecretStr(state_url) if state_url else None, state_dir)
        try:
            await Objects(store).put(Tenant("team", requests_per_s=LIMIT))
            _, text = await Keys(store).create("team", [parse_scope("infer:echo")])
        finally:
            await store.close()
        return text

    return asyncio.run(main())


def flood(port: int, key: str) -> tuple[int, int]:
    """On one connection, one request after the other: how many were admitted and refused, without the first seconds."""
    head = f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
    began_s = time.monotonic()
    counts = {200: 0, 429: 0}
    with closing(socket.create_connection(("127.0.0.1", port), timeout=LONG_S)) as connection:
        while (passed_s := time.monotonic() - began_s) < FLOOD_S:
            connection.sendall(head + BODY)
            status = raw_http.status(raw_http.read_answer(connection))
            counts[status] += passed_s >= SETTLED_S
    return counts[200], counts[429]


def per_second(*floods: tuple[int, int]) -> float:
    assert all(refused > LIMIT for _, refused in floods), f"that was no flood: {floods}"
    return sum(admitted for admitted, _ in floods) / (FLOOD_S - SETTLED_S)


def test_one_connection_gets_the_rate_though_there_are_two_workers(start: Start, tmp_path: Path) -> None:
    key = make_key(None, tmp_path)
    running = start(tmp_path, *FLAGS, "--workers", "2")
    rate = per_second(flood(running.port("http"), key))
    assert BOUNDS[0] < rate < BOUNDS[1]
    assert running.stop() == 0, running.said()


def test_two_gateways_over_one_redis_let_the_rate_through_together(start: Start, tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    with redis_server(tmp_path / "redis") as redis, ThreadPoolExecutor() as clients:
        key = make_key(redis.url, tmp_path)
        gateways = [start(tmp_path / name, *FLAGS, "--state-url", redis.url) for name in ("one", "other")]
        ports = [gateway.port("http") for gateway in gateways]
        alone = per_second(flood(ports[0], key))
        assert BOUNDS[0] < alone < BOUNDS[1]
        together = per_second(*clients.map(flood, ports, [key, key]))
        assert BOUNDS[0] < together < BOUNDS[1]
        for gateway in gateways:
            assert gateway.stop() == 0, gateway.said()
        assert redis.call("EXISTS", "tidegate:demand") == b":0\r\n", "they have left"
