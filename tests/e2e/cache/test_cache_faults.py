"""A gateway whose shared cache is held still, killed or poisoned: callers see nothing of it, and it comes back.

One that is slow, cut off or full is in tests/contract/cache/test_shared_cache_chaos.py.
"""

from __future__ import annotations

import random
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis

from tests.chaos_proxy import ChaosProxy, chaos_proxy
from tests.e2e import tidegate as servers
from tests.e2e.cache.cached_probe import SIX, Client, write_models
from tests.e2e.tidegate import COMPLETE, Tidegate, wait_for
from tests.redis_server import ESCAPED_PASSWORD, PASSWORD, RedisServer, redis_server

REQUESTS = 100
TAKES = {"takes_s": 0.02}
"""Computing costs more than asking Redis on any machine: whether it is asked at all is
tests/unit/cache/adapters/test_redis_cache_lookups.py."""
FAULT_S = 1.0
LONG_S = 60.0


class Bench:
    """Callers that never stop, and the way between gateway and Redis."""

    def __init__(self, gateway: Tidegate, redis_: RedisServer, proxy: ChaosProxy) -> None:
        self.client, self.redis, self.proxy = Client(gateway), redis_, proxy
        self.asked = 0
        self.failures: list[str] = []
        self._is_over = threading.Event()

    @contextmanager
    def asking(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._ask, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join(30)

    def _ask(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._is_over.is_set():
            first = float(chance.randrange(REQUESTS))
            over = chance.choice(("json", "binary", "grpc"))
            try:
                answer = self.client.ask(over=over, data=[first, *SIX[1:]], parameters=TAKES)
                assert answer.status == 200
                assert answer.outputs["Y"][1] == [2 * first, *(2 * value for value in SIX[1:])]
            except Exception as exc:
                self.failures.append(f"{over}: {exc!r}")
            self.asked += 1

    def metric(self, line: str) -> float:
        page = urllib.request.urlopen(self.client.gateway.endpoints["metrics"], timeout=LONG_S).read().decode()
        found = re.search(rf"^{re.escape(line)} (\S+)$", page, re.MULTILINE)
        assert found is not None, line
        return float(found.group(1))

    def hits(self) -> float:
        return self.metric('tidegate_shared_cache_lookups_total{result="hit"}')

    def wait_until_used(self) -> None:
        before = self.hits()
        wait_for(
            lambda: self.metric("tidegate_shared_cache_away") == 0 and self.hits() > before + 20, timeout_s=LONG_S, what="hits in Redis"
        )


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Level one has room for a few answers only."""
    folder = tmp_path_factory.mktemp("faults")
    write_models(folder / "models")
    with redis_server(folder, "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lfu") as redis_, chaos_proxy(redis_.port) as proxy:
        url = f"redis://:{ESCAPED_PASSWORD}@127.0.0.1:{proxy.port}/0"
        flags = ["--model-repository", str(folder / "models"), COMPLETE, "--load", "probe", "--cache-url", url, "--cache-bytes", "10000"]
        gateway = servers.start(folder / "state", *flags)
        bench = Bench(gateway, redis_, proxy)
        with bench.asking():
            yield bench
        gateway.kill()
        assert "Traceback" not in gateway.said()


@contextmanager
def held_still(bench: Bench) -> Iterator[None]:
    bench.proxy.is_stalled = True
    yield
    bench.proxy.is_stalled = False


@contextmanager
def killed(bench: Bench) -> Iterator[None]:
    bench.redis.kill()
    yield
    bench.redis.start()


@contextmanager
def poisoned(bench: Bench) -> Iterator[None]:
    chance = random.Random(7)
    with redis.Redis(port=bench.redis.port, password=PASSWORD) as client:
        keys = [bytes(key) for key in client.scan_iter(count=1000)]
        assert keys, "something is there to be poisoned"
        values = [client.get(key) or b"" for key in keys]
        for number, key in enumerate(keys):
            match number % 4:
                case 0:
                    client.set(key, chance.randbytes(200))
                case 1:
                    client.set(key, values[number][:-1])
                case 2:
                    client.set(key, values[number - 1])
                case 3:
                    client.delete(key)
                    client.lpush(key, b"no string at all")
        yield


@pytest.mark.parametrize("fault", [held_still, killed, poisoned], ids=lambda fault: fault.__name__)
def test_no_caller_sees_it_and_it_comes_back(bench: Bench, fault: Callable[[Bench], contextmanager[None]]) -> None:
    bench.wait_until_used()
    before = bench.asked
    with fault(bench):
        time.sleep(FAULT_S)
    bench.wait_until_used()
    wait_for(lambda: bench.asked > before + 100, timeout_s=LONG_S, what="a hundred requests")
    assert bench.failures == []
