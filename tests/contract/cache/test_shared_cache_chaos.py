"""A cache's Redis that is slow, full, killed, held still, cut off or poisoned: nothing raises or is wrong, and it comes back."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from pydantic import SecretStr

from control_plane.cache.adapters.redis_cache import RedisCache
from control_plane.cache.domain.shared_value import frame, name_of
from tests.chaos_proxy import ChaosProxy, chaos_proxy
from tests.contract.cache.caches import COMPUTING_S, EVICTING, LONG_S, answered, key, put_for_sure, redis_cache, running, until, usable
from tests.redis_server import ESCAPED_PASSWORD, PASSWORD, RedisServer, free_port, redis_server
from tests.tls_files import Authority, needs_openssl

KEYS = 8
SOON_S = 60.0
"""Far more than a thousand lookups of an open cache take."""
COSTS_S = 0.2
"""More than a Redis that is well takes on any machine."""
_SEED = 20260101


def value(number: int) -> bytes:
    return b"value of %d" % number * 20


@dataclass
class Callers:
    """Some that ask all the time, of a model that takes `COSTS_S`; each found value is checked."""

    cache: RedisCache
    asked: int = 0
    found: int = 0

    async def run(self) -> None:
        numbers = random.Random(_SEED)
        while True:
            wanted = [numbers.randrange(KEYS) for _ in range(numbers.choice((1, 1, 3)))]
            values = await self.cache.get([key(number) for number in wanted], computing_s=COSTS_S)
            assert [found for found, number in zip(values, wanted, strict=True) if found not in (None, value(number))] == []
            self.asked += 1
            self.found += len(values) - values.count(None)
            self.cache.put(key(wanted[0]), value(wanted[0]), ttl_s=60.0)
            await asyncio.sleep(0.001)

    async def find_again(self) -> None:
        """Until what is put is found."""
        before = self.found
        await until(lambda: self.found > before + 20)

    async def ask_on(self, times: int = 30) -> None:
        """None of them ends."""
        before = self.asked
        await until(lambda: self.asked > before + times)


@asynccontextmanager
async def asking(cache: RedisCache) -> AsyncIterator[Callers]:
    """Four of them, of a cache that has what they ask for."""
    callers = Callers(cache)
    async with usable(cache):
        for number in range(KEYS):
            await put_for_sure(cache, key(number), value(number))
        async with asyncio.TaskGroup() as tasks:
            under_way = [tasks.create_task(callers.run()) for _ in range(4)]
            await callers.find_again()
            yield callers
            for task in under_way:
                task.cancel()


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), *EVICTING) as server:
        yield server


@pytest.fixture
def server(standing: RedisServer) -> RedisServer:
    """One that is empty, for cases that leave it running as it was."""
    assert standing.call("FLUSHALL") == b"+OK\r\n"
    return standing


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path, *EVICTING) as server:
        yield server


@contextmanager
def proxied(server: RedisServer) -> Iterator[tuple[ChaosProxy, RedisCache]]:
    with chaos_proxy(server.port) as proxy:
        yield proxy, redis_cache(proxy.port)


async def costs_nothing(cache: RedisCache) -> None:
    """While it is away nobody waits for it, whatever their patience."""
    await until(lambda: cache.is_bypassed)
    async with asyncio.timeout(SOON_S):
        for _ in range(1000):
            assert await cache.get([key(1)], computing_s=COSTS_S) in ([None], [value(1)])
            await asyncio.sleep(0)


async def test_one_that_hangs(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), proxied(server) as (proxy, cache):
        async with asking(cache) as callers:
            proxy.delay_s = 0.3
            await costs_nothing(cache)
            late = cache.counts.late
            await callers.ask_on()
            assert cache.counts.late == late, "trials are made for nobody"
            proxy.delay_s = 0.0
            await callers.find_again()
    assert "is not used for now, answers are computed instead: " in caplog.text
    assert f"the shared cache at redis://127.0.0.1:{proxy.port}/0 is back" in caplog.text
    assert PASSWORD not in caplog.text


async def test_slow(server: RedisServer) -> None:
    """Who computes sooner is not kept, whoever computes for longer is answered; and when it is quick again, both."""
    with proxied(server) as (proxy, cache):
        async with usable(cache):
            await put_for_sure(cache, key(1), value(1))
            proxy.delay_s = 0.03  # there and back
            await until(lambda: cache.answer_s > 0.06)
            slow, late = cache.counts.slow, cache.counts.late
            for _ in range(100):
                assert await cache.get([key(1)], computing_s=0.05) == [None]
            assert (cache.counts.slow, cache.counts.late) == (slow + 100, late)
            assert await answered(cache, [key(1)]) == [value(1)]
            proxy.delay_s = 0.0
            await until(lambda: 0.0 < cache.answer_s < 0.05)
            async with asyncio.timeout(LONG_S):
                while await cache.get([key(1)], computing_s=0.05) != [value(1)]:
                    await asyncio.sleep(0.01)


async def test_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is there is found; what is new is dropped until there is room."""
    with redis_server(tmp_path, "--maxmemory-policy", "noeviction") as server:
        cache = redis_cache(server.port)
        async with asking(cache) as callers:
            server.call("CONFIG", "SET", "maxmemory", "1")
            dropped = cache.counts.dropped
            await until(lambda: cache.counts.dropped > dropped)
            await callers.find_again()
            assert not cache.is_bypassed
            server.call("CONFIG", "SET", "maxmemory", "0")
            await put_for_sure(cache, key(100), b"new")
    assert caplog.text.count("cannot be written to for now: command not allowed when used memory > 'maxmemory'") == 1


@pytest.mark.parametrize("is_lost", [True, False])
async def test_killed_and_restarted(tmp_path: Path, is_lost: bool) -> None:
    durable = () if is_lost else ("--appendonly", "yes")
    with redis_server(tmp_path, *EVICTING, *durable) as server:
        cache = redis_cache(server.port)
        async with asking(cache) as callers:
            server.kill()
            await costs_nothing(cache)
            await callers.ask_on()
            server.start()
            await callers.find_again()


async def test_held_still(own_server: RedisServer) -> None:
    cache = redis_cache(own_server.port)
    async with asking(cache) as callers:
        own_server.process.send_signal(signal.SIGSTOP)
        try:
            for number in range(200):
                cache.put(key(1000 + number), b"x" * 2**19, ttl_s=60.0)
            await costs_nothing(cache)
            await callers.ask_on()
        finally:
            own_server.process.send_signal(signal.SIGCONT)
        await callers.find_again()


async def test_held_still_to_the_end(own_server: RedisServer) -> None:
    """Nothing that was not sent keeps the loop from closing."""
    try:
        cache = redis_cache(own_server.port, max_value_bytes=2**25)
        async with usable(cache):
            await put_for_sure(cache, key(1), value(1))
            own_server.process.send_signal(signal.SIGSTOP)
            cache.put(key(2), b"x" * 30_000_000, ttl_s=60.0)  # more than sockets take
            await asyncio.sleep(0.3)
        gc.collect()
    finally:
        own_server.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("how", ["cut", "reset", "stalled", "refusing"])
async def test_cut_off(server: RedisServer, how: str) -> None:
    with proxied(server) as (proxy, cache):
        async with asking(cache) as callers:
            for _ in range(2):
                proxy.is_refusing, proxy.is_stalled = how != "stalled", how == "stalled"
                if how != "stalled":
                    proxy.cut(by_reset=how == "reset")
                await costs_nothing(cache)
                await callers.ask_on()
                proxy.is_refusing = proxy.is_stalled = False
                await callers.find_again()


async def test_cut_again_and_again(server: RedisServer) -> None:
    """A connection lost now and then is made again at once."""
    with proxied(server) as (proxy, cache):
        async with asking(cache) as callers:
            for number in range(10):
                proxy.cut(by_reset=number % 2 == 0)
                await callers.find_again()
    assert int(server.call("INFO", "clients").split(b"connected_clients:")[1].split(b"\r\n")[0]) <= 4


GARBAGE: dict[str, Callable[[bytes], bytes]] = {
    "random": lambda piece: random.Random(len(piece)).randbytes(200),
    "random lines": lambda piece: b"*1\r\n$5\r\n" + os.urandom(5) + b"\r\n",
    "nothing": lambda piece: b"",
    "cut short": lambda piece: piece[: len(piece) // 2],
    "twice": lambda piece: piece * 2,
    "one answer before": lambda piece: b"*1\r\n$-1\r\n" + piece,
    "changed": lambda piece: piece.replace(b"value", b"VALUE"),
    "another protocol": lambda piece: b"HTTP/1.1 200 OK\r\n\r\n",
    "an error": lambda piece: b"-OOM \xff\xfe no\r\n",
    "loading": lambda piece: b"-LOADING Redis is loading the dataset in memory\r\n",
    "a number": lambda piece: b":7\r\n",
    "numbers": lambda piece: b"*1\r\n:7\r\n",
    "no array": lambda piece: b"*-1\r\n",
    "an endless array": lambda piece: b"*999999999\r\n$-1\r\n",
    "an endless value": lambda piece: b"*1\r\n$999999999999\r\nx",
    "nested": lambda piece: b"*1\r\n" * 2000,
    "no length": lambda piece: b"*x\r\n$y\r\n",
}


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_garbage(server: RedisServer, garbage: str) -> None:
    with proxied(server) as (proxy, cache):
        async with asking(cache) as callers:
            proxy.answer = GARBAGE[garbage]
            await callers.ask_on(100)
            proxy.answer = None
            await callers.find_again()


POISON: dict[str, Callable[[bytes, bytes], object]] = {
    "random": lambda name, framed: os.urandom(200),
    "empty": lambda name, framed: b"",
    "cut short": lambda name, framed: framed[:-1],
    "head only": lambda name, framed: framed[:20],
    "longer": lambda name, framed: framed + b"\0",
    "a bit changed": lambda name, framed: framed[:-1] + bytes([framed[-1] ^ 1]),
    "another key's": lambda name, framed: frame(key(7), value(7)),
    "a text": lambda name, framed: "42",
    "the value alone": lambda name, framed: value(1),
    "large": lambda name, framed: b"x" * 2**20,
}


@pytest.mark.parametrize("poison", [*POISON, "wrong type"])
async def test_poisoned(server: RedisServer, poison: str) -> None:
    name, framed = name_of(key(1)), frame(key(1), value(1))

    def write(client: redis.Redis) -> None:
        client.delete(name)
        if poison == "wrong type":
            client.hset(name, "field", framed)
        else:
            client.set(name, POISON[poison](name, framed))

    def connections() -> int:
        return int(client.info("stats")["total_connections_received"])  # type: ignore[index,arg-type,unused-ignore]

    with redis.Redis.from_url(server.url) as client:
        cache = redis_cache(server.port)
        async with usable(cache):
            await put_for_sure(cache, key(2), value(2))
            write(client)
            opened = connections()
            damaged = cache.counts.damaged
            async with asyncio.timeout(LONG_S):
                for _ in range(30):  # it may be away between two of them
                    assert await cache.get([key(1), key(2)], computing_s=COMPUTING_S) in ([None, value(2)], [None, None])
            assert (cache.counts.damaged > damaged) == (poison != "wrong type")
            await put_for_sure(cache, key(1), value(1))
            assert await answered(cache, [key(1), key(2)]) == [value(1), value(2)]
            assert connections() < opened + 10, "what lies there is no reason to connect anew"


async def test_away_from_the_start(own_server: RedisServer) -> None:
    own_server.kill()
    cache = redis_cache(own_server.port)
    async with running(cache):
        await costs_nothing(cache)
        own_server.start()
        await put_for_sure(cache, key(1), value(1))


async def test_a_wrong_password_is_told_of_without_it(own_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    own_server.call("CONFIG", "SET", "requirepass", "another")
    cache = redis_cache(own_server.port)
    async with running(cache):
        await until(lambda: "is not used for now" in caplog.text)
        assert cache.is_bypassed
    assert "invalid username-password pair" in caplog.text
    assert PASSWORD not in caplog.text


async def test_it_ends_at_whatever_step_it_is_cancelled(server: RedisServer) -> None:
    for steps in range(60):
        cache = redis_cache(server.port)
        async with asyncio.timeout(LONG_S), running(cache):
            cache.put(key(1), b"x", ttl_s=60.0)
            for _ in range(steps):
                await asyncio.sleep(0)


@needs_openssl
@pytest.mark.parametrize("is_trusted", [True, False])
async def test_over_tls_only_a_server_of_a_trusted_authority_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_trusted: bool
) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    shown, port = authority.issue("server"), free_port()
    tls = ("--tls-port", str(port), "--tls-cert-file", str(shown.certificate), "--tls-key-file", str(shown.key))
    believed = (authority if is_trusted else other).certificate
    url = SecretStr(f"rediss://:{ESCAPED_PASSWORD}@127.0.0.1:{port}/0?ssl_ca_certs={believed}")
    with redis_server(tmp_path, *EVICTING, *tls, "--tls-ca-cert-file", str(authority.certificate), "--tls-auth-clients", "no"):
        cache = RedisCache(url, max_value_bytes=2**20)
        async with running(cache):
            if is_trusted:
                await put_for_sure(cache, key(1), value(1))
            else:
                await until(lambda: "certificate verify failed" in caplog.text)
                assert cache.is_bypassed
