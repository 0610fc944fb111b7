"""Usage, requests, audit and loads as CloudEvents for others: over Redis Streams and the admin API, and exact whatever is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis as redis_client

from tests.e2e.accounts import Administrator, make_first_key
from tests.e2e.conftest import Start
from tests.e2e.processes import workers_of
from tests.e2e.tidegate import LONG_S, PROJECT, Tidegate, wait_for
from tests.redis_server import RedisServer, redis_server

BODY = {"inputs": [{"name": "INPUT0", "shape": [1, 4], "datatype": "FP32", "data": [0, 0, 0, 0]}]}
FORGED = 'x"\u2028\x85' + "y" * 500
AMOUNTS = ("requests", "failed", "refused", "rows", "elements", "compute_units", "cache_hits")
TENANTS = ("red", "blue")


class Subscriber:
    """Somebody with a Redis client, who remembers what it has seen and forgets what comes again."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.seen: dict[str, dict[str, Any]] = {}
        self.again = 0
        self._last = "0"

    def read(self, stream: str = "usage") -> None:
        with suppress(redis_client.RedisError), redis_client.Redis.from_url(self._server.url, socket_timeout=5.0) as client:
            found: Any = client.xread({f"tidegate:events:{stream}": self._last}, count=10_000)
            for _, entries in found or ():
                for place, fields in entries:
                    event = json.loads(fields[b"event"])
                    self.again += event["id"] in self.seen
                    self.seen[event["id"]] = event
                    self._last = place.decode()

    def sums(self) -> dict[tuple[str, str, str], dict[str, float]]:
        sums: dict[tuple[str, str, str], Counter[str]] = {}
        for event in self.seen.values():
            data = event["data"]
            sums.setdefault((data["day"], data["tenant"], data["model"]), Counter()).update({each: data[each] for each in AMOUNTS})
        return {key: {each: pytest.approx(counted[each], rel=1e-9) for each in AMOUNTS} for key, counted in sums.items()}

    def forget_place(self) -> None:
        """Redis begins its streams anew."""
        self._last = "0"


class Load:
    """Callers who send requests to a gateway, whatever becomes of it."""

    def __init__(self, keys: dict[str, str]) -> None:
        self._keys = keys
        self.port = 0
        self.answered = 0
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(key,)) for key in keys.values()]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def more(self, count: int) -> None:
        """Wait for so many more answers."""
        wanted = self.answered + count
        wait_for(lambda: self.answered >= wanted, what=f"{count} answers")

    def _send(self, key: str) -> None:
        number = 0
        while not self._is_over.wait(0.01):
            number += 1
            model = "echo" if number % 5 else "nosuch"
            with suppress(OSError):
                self.answered += ask(self.port, key, model=model) in (200, 400, 404)


def ask(port: int, key: str, *, model: str = "echo", request_id: str = "") -> int:
    body = json.dumps(BODY | ({"id": request_id} if request_id else {})).encode()
    headers = {"content-type": "application/json", "x-api-key": key}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v2/models/{model}/infer", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=5.0) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as exc:
        return exc.code


def usage(administrator: Administrator) -> dict[tuple[str, str, str], dict[str, float]]:
    """Return the amounts that `tidegate usage` shows, by day, tenant and model."""
    status, found = administrator.call("GET", "/usage?by=day,tenant,model&since=1d")
    assert status == 200, found
    return {(row["day"], row["tenant"], row["model"]): {each: row[each] for each in AMOUNTS} for row in found["rows"]}


@pytest.fixture(scope="module")
def triton_url(tidegate: Tidegate) -> str:
    return f"http://127.0.0.1:{tidegate.triton_port('HTTPService')}?grpc_port={tidegate.triton_port('GRPCInferenceService')}"


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis that keeps nothing over its end."""
    (tmp_path / "streams").mkdir()
    with redis_server(tmp_path / "streams", "--appendonly", "no") as server:
        yield server


@pytest.mark.parametrize("over", ["SQLite", "Redis"])
def test_the_streams_usage_is_the_gateways_after_each_was_killed(
    over: str, start: Start, streams: RedisServer, tmp_path: Path, triton_url: str
) -> None:
    (tmp_path / "state").mkdir()
    with redis_server(tmp_path / "state") as state:
        state_url = state.url if over == "Redis" else None
        admin_key = make_first_key(tmp_path / "own", state_url)
        flags = ["--authentication", "--triton-url", triton_url, "--events-url", streams.url]
        flags += ["--state-url", state_url, "--workers", "2"] if state_url else []
        gateway = start(tmp_path / "own", *flags)
        administrator = Administrator(gateway, admin_key)
        for tenant in TENANTS:
            administrator.make_tenant(tenant)
        keys = {tenant: administrator.make_key(tenant, "infer:*") for tenant in TENANTS}
        subscriber = Subscriber(streams)
        time.sleep(1.0)

        with Load(keys) as load:
            load.port = gateway.port("http")
            load.more(80)
            wait_for(lambda: subscriber.read() or subscriber.seen, what="the first event")
            if state_url:
                os.kill(max(workers_of(gateway)), signal.SIGKILL)
            load.more(40)
            streams.kill()
            load.more(80)
            streams.start()
            subscriber.forget_place()
            if over == "Redis":
                state.kill()
                time.sleep(0.5)
                state.start()
            load.more(40)
            gateway.process.kill()
            gateway.process.wait()
            gateway = start(tmp_path / "own", *flags)
            load.port = gateway.port("http")
            load.more(80)

        administrator = Administrator(gateway, admin_key)
        time.sleep(2.0)
        wait_for(lambda: subscriber.read() or subscriber.sums() == usage(administrator), what="the last event of usage")
        assert {key[1] for key in subscriber.sums()} == set(TENANTS)
        assert sum(row["requests"] for row in usage(administrator).values()) > 200
        assert subscriber.again, "what the killed Redis had was sent again"


@pytest.fixture
def gateway(start: Start, streams: RedisServer, tmp_path: Path, triton_url: str) -> tuple[Tidegate, Administrator]:
    admin_key = make_first_key(tmp_path / "own")
    running = start(tmp_path / "own", "--authentication", "--triton-url", triton_url, "--events-url", streams.url)
    return running, Administrator(running, admin_key)


def followed(gateway: Tidegate, key: str, stream: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "control_plane", "events", "--follow", "--stream", stream, "-o", "json"]
    command += ["--state-dir", str(gateway.state_dir)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT, env={**os.environ, "TIDEGATE_API_KEY": key})


def booked_as_documented(server: RedisServer) -> set[str]:
    """Tenants that the document's subscriber books, until nothing more comes."""
    page = (PROJECT / "docs/operations/events.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    tenants: set[str] = set()

    class Enough(Exception):
        pass

    def book(id_: str, data: dict[str, Any]) -> None:
        if data["tenant"] in tenants:
            raise Enough
        tenants.add(data["tenant"])
        if data["tenant"] == "red":
            raise Enough

    with pytest.raises(Enough):
        exec(code.replace("redis://localhost/1", server.url), {"book": book})
    return tenants


def metric(gateway: Tidegate, key: str, name: str) -> float:
    request = urllib.request.Request(gateway.endpoints["metrics"], headers={"x-api-key": key})
    with urllib.request.urlopen(request, timeout=LONG_S) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_both_ways_tell_the_same_request_and_a_redis_that_is_frozen_slows_none(
    gateway: tuple[Tidegate, Administrator], streams: RedisServer
) -> None:
    running, administrator = gateway
    administrator.make_tenant("red")
    key = administrator.make_key("red", "infer:*")
    time.sleep(1.0)
    port, subscriber = running.port("http"), Subscriber(streams)
    with followed(running, administrator.key, "requests") as process:
        assert process.stdout is not None
        time.sleep(3.0)  # until it follows
        assert ask(port, key, request_id=FORGED) == 200
        told = json.loads(process.stdout.readline())
        process.terminate()
    assert told["data"]["request_id"] == FORGED[:128]
    assert told["data"]["key"] in key
    wait_for(lambda: subscriber.read("requests") or told["id"] in subscriber.seen, what="the same request in Redis")
    assert subscriber.seen[told["id"]] == told
    assert key not in json.dumps(list(subscriber.seen.values()))

    audited = Subscriber(streams)
    wait_for(lambda: audited.read("audit") or audited.seen, what="the audit log")
    assert "tenant/red" in [event.get("subject") for event in audited.seen.values()]
    assert key not in json.dumps(list(audited.seen.values()))

    assert "red" in booked_as_documented(streams)

    streams.process.send_signal(signal.SIGSTOP)
    try:
        slowest_s = 0.0
        for _ in range(300):
            began_s = time.monotonic()
            assert ask(port, key) == 200
            slowest_s = max(slowest_s, time.monotonic() - began_s)
        assert slowest_s < 1.0
        wait_for(lambda: metric(running, administrator.key, "tidegate_events_behind_seconds") > 3, what="that events wait")
    finally:
        streams.process.send_signal(signal.SIGCONT)
    wait_for(lambda: metric(running, administrator.key, "tidegate_events_behind_seconds") == 0, what="that events are sent again")
    wait_for(lambda: subscriber.read("requests") or len(subscriber.seen) >= 301, what="the requests that waited")
    published = 'tidegate_events_published_total{stream="requests"}'
    wait_for(lambda: metric(running, administrator.key, published) >= 301, what="that they are counted")
    assert metric(running, administrator.key, 'tidegate_events_dropped_total{stream="requests"}') == 0

    streams.process.send_signal(signal.SIGSTOP)
    try:
        assert ask(port, key) == 200
        began_s = time.monotonic()
        assert running.stop() == 0, running.said()
        assert time.monotonic() - began_s < 20.0
    finally:
        streams.process.send_signal(signal.SIGCONT)
