"""What is metered is what was sent, to the request: with a slow store, over a clean stop, and as far as a kill -9 leaves it."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvloop

from perf.servers.processes import free_port, running
from tests.chaos_proxy import ChaosProxy, chaos_proxy
from tests.e2e.accounts import Administrator, make_first_key
from tests.e2e.conftest import Start
from tests.e2e.load import ELEMENTS, Ask, Counts, Target, call_grpc, call_http, grpc_ask, http_ask, spread
from tests.e2e.tidegate import LONG_S, PROJECT, Tidegate, wait_for
from tests.redis_server import redis_server

HTTP_REQUESTS, GRPC_REQUESTS = 2_700, 300
CALLERS = 8
KNOWN_WITHIN_S = 1.0
"""A new key, by all."""
WAITS_S = 1.5
"""A request at most, before the store has it: half a second, and what a busy machine takes."""
_ANSWER = b'{"model_name":"echo","model_version":"1","outputs":[]}'
_VALID = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, ELEMENTS], "datatype": "FP32", "data": [0] * ELEMENTS}]}).encode()
_INVALID = _VALID.replace(b"FP32", b"FP33")


@pytest.fixture
def triton_url(tidegate: Tidegate, tmp_path: Path) -> Iterator[str]:
    """Over HTTP a stand-in that answers at once, over gRPC the real Triton, which alone would not answer so many in time."""
    answer = tmp_path / "answer"
    answer.write_bytes(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(_ANSWER), _ANSWER))
    port = free_port()
    command = [sys.executable, str(PROJECT / "perf" / "peers" / "stand_in.py"), "--port", str(port), "--answer", str(answer)]
    with running(command, port):
        yield f"http://127.0.0.1:{port}?grpc_port={tidegate.triton_port('GRPCInferenceService')}"


@dataclass
class Bench:
    """A store behind a slow link, and how a gateway over it is started."""

    start: Callable[[str], Tidegate]
    link: ChaosProxy
    admin_key: str

    def administrator(self, gateway: Tidegate) -> Administrator:
        return Administrator(gateway, self.admin_key)


@pytest.fixture
def bench(start: Start, tmp_path: Path, triton_url: str) -> Iterator[Bench]:
    folder = tmp_path / "redis"
    folder.mkdir()
    with redis_server(folder) as redis, chaos_proxy(redis.port) as link:
        url = redis.url.replace(f":{redis.port}/", f":{link.port}/")
        admin_key = make_first_key(tmp_path, redis.url)

        def start_one(name: str, *more: str) -> Tidegate:
            return start(tmp_path / name, "--authentication", "--state-url", url, "--triton-url", triton_url, *more)

        yield Bench(start_one, link, admin_key)


def dropped(gateway: Tidegate, key: str) -> float:
    request = urllib.request.Request(gateway.endpoints["metrics"], headers={"x-api-key": key})
    with urllib.request.urlopen(request, timeout=LONG_S) as page:
        found = re.search(r"^tidegate_usage_dropped_total (\S+)$", page.read().decode(), re.MULTILINE)
    assert found is not None
    return float(found.group(1))


def metered(administrator: Administrator) -> dict[tuple[str, str], int]:
    """As `Counts.ended` has it."""
    rows = administrator.usage()
    return {(tenant, ended): row[ended] for tenant, row in rows.items() for ended in ("requests", "failed", "refused") if row[ended]}


def requests_of(keys: Mapping[str, str]) -> tuple[deque[Ask], deque[Ask]]:
    """What each tenant sends, over HTTP and over gRPC: some of it is not valid, and some more than its limit."""
    over_http = spread(
        (http_ask(tenant, keys[tenant], body), count * HTTP_REQUESTS // 100)
        for tenant, body, count in (("red", _VALID, 50), ("red", _INVALID, 5), ("blue", _VALID, 35), ("limited", _VALID, 10))
    )
    over_grpc = spread(
        (ask, count * GRPC_REQUESTS // 100)
        for ask, count in (
            (grpc_ask("red", keys["red"]), 40),
            (grpc_ask("blue", keys["blue"]), 40),
            (grpc_ask("blue", keys["blue"], model="nosuch"), 5),
            (grpc_ask("blue", keys["blue"], datatype="FP33"), 5),
            (grpc_ask("limited", keys["limited"]), 10),
        )
    )
    assert len(over_http) + len(over_grpc) == HTTP_REQUESTS + GRPC_REQUESTS
    return over_http, over_grpc


def test_three_thousand_requests(bench: Bench) -> None:
    bench.link.delay_s = 0.005
    first, second = bench.start("first", "--workers", "2"), bench.start("second")
    administrator = bench.administrator(second)
    administrator.make_tenant("red")
    administrator.make_tenant("blue", weight=3.0)
    administrator.make_tenant("limited", requests_per_s=10.0, burst=20)
    keys = {tenant: administrator.make_key(tenant, "infer:*") for tenant in ("red", "blue", "limited")}
    time.sleep(KNOWN_WITHIN_S)

    asks = requests_of(keys)
    counts, targets = Counts(), [Target(first), Target(second)]
    kept_back = [deque(each.pop() for _ in range(len(each) // 4)) for each in asks]

    async def load() -> None:
        async with asyncio.TaskGroup() as tasks:
            begin(tasks, targets, counts, asks)
            await when_answered(counts, 400)
            bench.link.delay_s = 0.3
            await when_answered(counts, 900)
            bench.link.delay_s = 0.8  # what is sent arrives, and what confirms it comes too late
            await when_answered(counts, 1_500)
            first.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(first.process.wait, 15.0) == 0, first.said()
            assert list((first.state_dir / "usage-spill").glob("*.json")), "there was something left to be taken up"
            bench.link.delay_s = 0.05
            targets[0].gateway = await asyncio.to_thread(bench.start, "first", "--workers", "2")
        async with asyncio.TaskGroup() as tasks:
            begin(tasks, targets, counts, kept_back)

    uvloop.run(load())

    assert counts.ended.total() == HTTP_REQUESTS + GRPC_REQUESTS
    assert {"requests", "failed", "refused"} == {ended for _, ended in counts.ended}
    wait_for(lambda: sum(metered(administrator).values()) >= counts.ended.total(), what="the last request")
    time.sleep(2.0)
    assert metered(administrator) == dict(counts.ended)
    rows = administrator.usage()
    assert [rows[tenant]["rows"] for tenant in keys] == [rows[tenant]["requests"] for tenant in keys]
    assert dropped(second, bench.admin_key) == 0
    assert not list((first.state_dir / "usage-spill").iterdir())


def begin(tasks: asyncio.TaskGroup, targets: Sequence[Target], counts: Counts, asks: Sequence[deque[Ask]]) -> None:
    """Begin the callers, at each gateway 12 over HTTP and 4 over gRPC."""
    over_http, over_grpc = asks
    for target in targets:
        for _ in range(12):
            tasks.create_task(call_http(target, over_http, counts))
        for _ in range(4):
            tasks.create_task(call_grpc(target, over_grpc, counts))


async def when_answered(counts: Counts, number: int) -> None:
    while len(counts.at_s) < number:
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("over", ["SQLite", "a Redis that no longer confirms"])
def test_a_kill_loses_no_more_than_what_waited(bench: Bench, start: Start, tmp_path: Path, triton_url: str, over: str) -> None:
    """Half a second's requests, or those since the store went away; and none is counted twice."""
    if over == "SQLite":
        admin_key = make_first_key(tmp_path / "own")
        bench = Bench(lambda name: start(tmp_path / name, "--authentication", "--triton-url", triton_url), bench.link, admin_key)
    gateway = bench.start("own")
    administrator = bench.administrator(gateway)
    administrator.make_tenant("red")
    asks = deque([http_ask("red", administrator.make_key("red", "infer:*"), _VALID)] * 100_000)
    counts, target = Counts(), Target(gateway)
    time.sleep(KNOWN_WITHIN_S)

    async def load() -> float:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CALLERS):
                tasks.create_task(call_http(target, asks, counts, pause_s=0.005))
            await asyncio.sleep(3.0)
            confirmed_until_s = time.monotonic()
            if over.endswith("confirms"):
                bench.link.delay_s = 0.8
                await asyncio.sleep(2.0)
            gateway.process.kill()
            gateway.process.wait()
            target.gateway = None
        return confirmed_until_s

    confirmed_until_s = uvloop.run(load())
    bench.link.delay_s = 0.0
    administrator = bench.administrator(bench.start("own"))
    time.sleep(1.0)

    surely = sum(answered_s < confirmed_until_s - WAITS_S for answered_s in counts.at_s)
    answered = len(counts.at_s)
    assert {ended for _, ended in counts.ended} == {"requests"}
    assert surely > 100
    assert surely <= metered(administrator)["red", "requests"] <= answered + CALLERS, (surely, answered)
