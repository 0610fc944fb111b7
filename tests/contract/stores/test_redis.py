"""A Redis that holds state: which are refused, and what comes of one that ends, hangs or comes back."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from pydantic import SecretStr

from control_plane.app.stores import open_state_store, open_usage_store
from control_plane.cli.backup import backup, restore
from control_plane.core.errors import Conflict, StartupError, StoreUnavailable
from control_plane.metering.domain.usage import EVERY_DAY, Usage
from control_plane.objects.adapters.redis_store import RedisStateStore
from control_plane.objects.domain.stored import Kind
from control_plane.storage.redis import RedisLink, wait_until_durable
from tests.aio import run
from tests.contract.stores.stores import empty_redis, handles, link
from tests.contract.stores.usage_store_bench import batch, counted, running, used
from tests.redis_server import DURABLE, ESCAPED_PASSWORD, PASSWORD, RedisServer, free_port, redis_server
from tests.tls_files import Authority, needs_openssl

OPENINGS = [pytest.param(open_state_store, id="state"), pytest.param(open_usage_store, id="usage")]
SOON_S = 40.0
"""Far more than the second that a call may take, on a machine that is busy."""


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize(
    ("options", "says"),
    [
        pytest.param(
            ("--appendonly", "yes", "--maxmemory-policy", "allkeys-lru"),
            r"set `maxmemory-policy noeviction` \(it is allkeys-lru\) there;",
            id="evicts",
        ),
        pytest.param(("--appendonly", "no"), r"set `appendonly yes` \(it is 0\) there;", id="no-aof"),
        pytest.param(("--maxmemory-policy", "volatile-ttl"), r"noeviction` \(it is volatile-ttl\) and `appendonly yes`", id="both"),
    ],
)
def test_one_that_would_forget_is_refused_with_what_to_set(tmp_path: Path, opening, options: tuple[str, ...], says: str) -> None:  # type: ignore[no-untyped-def]
    with redis_server(tmp_path, *options) as server, pytest.raises(StartupError, match=says) as caught:
        run(opening(SecretStr(server.url), tmp_path))
    assert PASSWORD not in str(caught.value)
    assert f"redis://127.0.0.1:{server.port}/0" in str(caught.value)


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_wrong_password_is_told_of_without_it(request: pytest.FixtureRequest, tmp_path: Path, opening) -> None:  # type: ignore[no-untyped-def]
    server = empty_redis(request)
    with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{server.port}/0: .*password") as caught:
        run(opening(SecretStr(f"redis://:s3cret@127.0.0.1:{server.port}/0"), tmp_path))
    assert "s3cret" not in repr(caught.value)


@pytest.mark.parametrize(("opening", "layout"), [(open_state_store, "tidegate:state:layout"), (open_usage_store, "tidegate:usage:layout")])
def test_what_a_newer_tidegate_wrote_is_refused(request: pytest.FixtureRequest, tmp_path: Path, opening, layout: str) -> None:  # type: ignore[no-untyped-def]
    server = empty_redis(request)
    run(_open_and_close(opening, server))
    assert server.call("GET", layout) == b"$1\r\n1\r\n"
    server.call("SET", layout, "2")
    with pytest.raises(StartupError, match=r"newer tidegate \(layout 2; this one knows 1\): upgrade"):
        run(opening(SecretStr(server.url), tmp_path))


async def _open_and_close(opening, server: RedisServer) -> None:  # type: ignore[no-untyped-def]
    store = await opening(SecretStr(server.url), Path())
    await store.close()


async def test_migrations_run_in_order_each_once_also_from_several_at_once(request: pytest.FixtureRequest) -> None:
    server = empty_redis(request)
    steps = [f"redis.call('RPUSH', 'done', '{number}')" for number in (1, 2, 3)]

    async def opening() -> RedisLink:
        return link(server)

    async with handles(opening, 4) as links:
        await links[0].migrate("layout", steps[:1])
        await asyncio.gather(*(one.migrate("layout", steps) for one in links))
        assert await links[0].client.lrange("done", 0, -1) == ["1", "2", "3"]
        assert await links[0].client.get("layout") == "3"


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_one_that_ends_is_unavailable_at_once_and_back_with_all_it_was_told(tmp_path: Path, how: str) -> None:
    with redis_server(tmp_path) as server:
        now_s = asyncio.get_running_loop().time
        async with handles(lambda: open_state_store(SecretStr(server.url), tmp_path), 1) as (store,):
            put = await store.put(Kind.TENANT, "a", {"n": 1})
            wait = asyncio.gather(store.changes(put.resource_version, timeout_s=60.0), return_exceptions=True)
            await asyncio.sleep(0.3)
            server.stop() if how == "stopped" else server.kill()
            began_s = now_s()
            (ended,) = await wait
            assert isinstance(ended, StoreUnavailable)
            for call in (store.get(Kind.TENANT, "a"), store.put(Kind.TENANT, "b", {}), store.changes(0, timeout_s=60.0)):
                with pytest.raises(StoreUnavailable, match=f"redis://127.0.0.1:{server.port}/0") as away:
                    await call
                assert "127.0.0.1" not in away.value.shown, "callers need not know where it is"
            assert now_s() - began_s < SOON_S
            server.start()
            assert await store.get(Kind.TENANT, "a") == put
            with pytest.raises(Conflict):
                await store.put(Kind.TENANT, "a", {}, expected=0)
            assert await store.changes(0, timeout_s=60.0) == [put]


async def test_one_that_hangs_is_unavailable_within_a_second_and_comes_back(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        now_s = asyncio.get_running_loop().time
        async with handles(lambda: open_state_store(SecretStr(server.url), tmp_path), 1) as (store,):
            put = await store.put(Kind.TENANT, "a", {})
            server.process.send_signal(signal.SIGSTOP)
            try:
                for call in (store.get(Kind.TENANT, "a"), store.changes(0, timeout_s=60.0)):
                    began_s = now_s()
                    with pytest.raises(StoreUnavailable):
                        await call
                    assert now_s() - began_s < SOON_S
            finally:
                server.process.send_signal(signal.SIGCONT)
            assert await store.get(Kind.TENANT, "a") == put


async def test_a_start_waits_for_one_that_hangs_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with redis_server(tmp_path) as redis:
        redis.process.send_signal(signal.SIGSTOP)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(wait_until_durable(SecretStr(redis.url), timeout_s=1000.0))
            while not caplog.records:
                await asyncio.sleep(0.05)
            assert "waiting for the state store, for at most 1000 s" in caplog.text
            redis.process.send_signal(signal.SIGCONT)
            await waiting
        redis.process.send_signal(signal.SIGSTOP)
        with pytest.raises(StartupError, match=r"cannot be used within 0.1 s \(TIDEGATE_START_TIMEOUT_S\), .* does not answer"):
            await wait_until_durable(SecretStr(redis.url), timeout_s=0.1)


async def test_a_start_does_not_wait_for_one_that_will_never_do(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--appendonly", "no") as redis:
        for url, says in ((redis.url, "would lose state"), (redis.url.replace(ESCAPED_PASSWORD, "wrong"), "invalid username-password")):
            with pytest.raises(StartupError, match=says):
                await wait_until_durable(SecretStr(url), timeout_s=1000.0)


async def test_what_was_used_is_counted_after_an_outage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with redis_server(tmp_path) as server:
        async with handles(lambda: open_usage_store(SecretStr(server.url), tmp_path), 1) as (store,):
            await store.add(batch(used()))
            async with running(store):
                await counted(server)
                server.kill()
                lost = batch(used())
                with pytest.raises(StoreUnavailable):
                    await store.add(lost)
                server.start()
                await store.add(lost)
                await counted(server)
            ((_, usage),) = await store.totals(since_day=EVERY_DAY[0], until_day=EVERY_DAY[1])
            assert usage == Usage(requests=2, rows=4, elements=20, compute_units=1.0)
    assert "not summed for now" in caplog.text
    assert PASSWORD not in caplog.text


def test_a_backup_goes_from_redis_to_sqlite_and_back(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server = empty_redis(request)

    async def fill() -> None:
        async with handles(lambda: open_state_store(SecretStr(server.url), tmp_path), 1) as (state,):
            await state.put(Kind.TENANT, "a", {"n": 1})
        async with handles(lambda: open_usage_store(SecretStr(server.url), tmp_path), 1) as (usage,):
            await usage.add(batch(used()))  # nobody sums it

    run(fill())
    backup(tmp_path / "redis.jsonl", state_url=server.url)
    restore(tmp_path / "redis.jsonl", state_dir=tmp_path / "sqlite")
    backup(tmp_path / "sqlite.jsonl", state_dir=tmp_path / "sqlite")
    assert (tmp_path / "sqlite.jsonl").read_bytes() == (tmp_path / "redis.jsonl").read_bytes()
    with pytest.raises(Conflict, match="1 objects and 1 usage sums"):
        restore(tmp_path / "sqlite.jsonl", state_url=server.url)
    restore(tmp_path / "sqlite.jsonl", force=True, state_url=server.url)
    assert server.call("XLEN", "tidegate:usage:events") == b":0\r\n"
    backup(tmp_path / "again.jsonl", state_url=server.url)
    assert (tmp_path / "again.jsonl").read_text().splitlines()[2] == (tmp_path / "redis.jsonl").read_text().splitlines()[2]


@needs_openssl
@pytest.mark.parametrize("is_trusted", [True, False])
def test_over_tls_only_a_server_of_a_trusted_authority_is_spoken_to(tmp_path: Path, is_trusted: bool) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    shown, port = authority.issue("server"), free_port()
    tls = ("--tls-port", str(port), "--tls-cert-file", str(shown.certificate), "--tls-key-file", str(shown.key))
    believed = (authority if is_trusted else other).certificate
    url = SecretStr(f"rediss://:{ESCAPED_PASSWORD}@127.0.0.1:{port}/0?ssl_ca_certs={believed}")

    async def main() -> None:
        async with handles(lambda: open_state_store(url, tmp_path), 1) as (store,):
            put = await store.put(Kind.TENANT, "a", {})
            assert await store.changes(0, timeout_s=0) == [put]

    with redis_server(tmp_path, *DURABLE, *tls, "--tls-ca-cert-file", str(authority.certificate), "--tls-auth-clients", "no"):
        if is_trusted:
            run(main())
        else:
            with pytest.raises(StoreUnavailable, match=r"rediss://127\.0\.0\.1.*certificate verify failed"):
                run(main())


async def test_waits_that_are_given_up_leave_no_connections(request: pytest.FixtureRequest) -> None:
    server = empty_redis(request)

    async def opening() -> RedisStateStore:
        return RedisStateStore(link(server))

    async with handles(opening, 1) as (store,):
        for _ in range(40):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await store.changes(0, timeout_s=60.0)
        await store.get(Kind.TENANT, "a")
        clients = server.call("INFO", "clients").split(b"connected_clients:")[1].split(b"\r\n")[0]
        assert int(clients) <= 4  # the store's, and the one that asks


async def test_counting_ends_at_whatever_step_it_is_cancelled(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server = empty_redis(request)

    async with handles(lambda: open_usage_store(SecretStr(server.url), tmp_path), 1) as (store,):
        for steps in range(150):
            async with asyncio.timeout(SOON_S), running(store):
                for _ in range(steps):
                    await asyncio.sleep(0)
