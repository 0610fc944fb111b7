"""What every `fleet/ports.LeaseStore` that processes share does, and so does the fake that the proofs rest on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from control_plane.core.errors import StoreUnavailable
from control_plane.fleet.adapters.kubernetes.lease import KubernetesLease
from control_plane.fleet.adapters.redis_lease import make_redis_lease
from control_plane.fleet.domain.leadership.lease import Lease
from control_plane.fleet.ports import LeaseStore
from control_plane.node.domain.fence import Fence, Term
from control_plane.storage.kubernetes import KubernetesApi
from tests.contract.kubernetes.api_servers import REAL, an_api
from tests.contract.stores.stores import Opening, empty_redis, handles
from tests.fakes.stores.lease import FakeLeaseStore, FakeRecord
from tests.redis_server import RedisServer, redis_server

SOON_S = 40.0
"""Far more than the second that a call may take, on a machine that is busy."""
TTL_S = 3.0
"""Whole seconds, as a Lease of Kubernetes has them."""
TAKEN = Lease(1, "p1", TTL_S)


@pytest.fixture(params=["fake", "redis", "kubernetes", REAL])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opening[LeaseStore]]:
    record = FakeRecord()
    with ExitStack() as held:
        url = SecretStr(empty_redis(request).url) if request.param == "redis" else None
        kubernetes = {"kubernetes": "scripted", "real": "real"}.get(request.param)
        api = None if kubernetes is None else an_api(kubernetes, request, held, tmp_path)

        async def open_one() -> LeaseStore:
            if api is not None:
                return KubernetesLease(KubernetesApi(api.url, api.account), namespace="tidegate", name="tidegate", wall_s=lambda: 0.0)
            return make_redis_lease(url, wall_s=lambda: 0.0) if url is not None else FakeLeaseStore(record)

        yield open_one


async def taken(store: LeaseStore, seen: Lease | None = None, *, holder: str = "p1") -> Lease:
    lease = await store.acquire(seen, holder=holder, ttl_s=TTL_S)
    assert lease is not None
    return lease


async def test_one_that_nobody_has_is_not_there(opening: Opening[LeaseStore]) -> None:
    async with handles(opening, 1) as (store,):
        assert await store.read() is None
        assert await store.renew(TAKEN) is None
        await store.release(TAKEN)
        assert await store.read() is None


async def test_all_see_who_took_it(opening: Opening[LeaseStore]) -> None:
    async with handles(opening, 2) as (one, other):
        assert await taken(one) == TAKEN
        assert await one.read() == await other.read() == TAKEN


async def test_only_who_saw_it_as_it_is_takes_it_over(opening: Opening[LeaseStore]) -> None:
    async with handles(opening, 2) as (one, other):
        mine = await taken(one)
        wrong = (None, replace(mine, token=2), replace(mine, beat=1), replace(mine, holder="p3"))
        assert [await other.acquire(seen, holder="p2", ttl_s=TTL_S) for seen in wrong] == [None] * 4
        assert await one.read() == mine
        assert await taken(other, mine, holder="p2") == Lease(2, "p2", TTL_S)
        assert await one.acquire(mine, holder="p1", ttl_s=TTL_S) is None


async def test_a_renewal_is_seen_by_who_would_take_it(opening: Opening[LeaseStore]) -> None:
    async with handles(opening, 2) as (one, other):
        mine = await taken(one)
        renewed = await one.renew(mine)
        assert renewed == replace(mine, beat=1) == await other.read()
        assert await one.renew(mine) == replace(mine, beat=2)  # an answer that got lost is made up for
        assert await other.acquire(renewed, holder="p2", ttl_s=TTL_S) is None


async def test_one_that_nobody_has_touched_is_resumed(opening: Opening[LeaseStore]) -> None:
    async with handles(opening, 2) as (one, other):
        mine = await taken(one)
        if not mine.run:  # it cannot tell whether it has lost a write
            assert await one.resume(mine) is None
            assert await other.read() == mine
            return
        assert await one.resume(mine) == replace(mine, beat=1) == await other.read()
        assert await one.resume(replace(mine, run="of another run")) is None
        assert await one.resume(replace(mine, run="")) is None
        assert await other.read() == replace(mine, beat=1)
        theirs = await taken(other, await other.read(), holder="p2")
        assert await one.resume(mine) is None
        await other.release(theirs)
        assert await other.resume(theirs) is None


async def test_who_lost_it_neither_renews_nor_releases(opening: Opening[LeaseStore]) -> None:
    async with handles(opening, 2) as (one, other):
        mine = await taken(one)
        theirs = await taken(other, mine, holder="p2")
        assert await one.renew(mine) is None
        await one.release(mine)
        assert await one.renew(replace(theirs, holder="p1")) is None
        assert await other.read() == theirs


async def test_one_that_is_released_is_seen_to_be_and_not_renewed(opening: Opening[LeaseStore]) -> None:
    async with handles(opening, 2) as (one, other):
        mine = await taken(one)
        await one.release(mine)
        await one.release(mine)
        found = await other.read()
        assert found == Lease(1, "p1", TTL_S, beat=1, is_released=True)
        assert await one.renew(mine) is None
        assert await other.acquire(mine, holder="p2", ttl_s=TTL_S) is None  # as it was before
        assert await taken(other, found, holder="p2") == Lease(2, "p2", TTL_S)


async def test_tokens_grow_for_who_has_seen_them_when_the_store_has_lost_all(request: pytest.FixtureRequest) -> None:
    server = empty_redis(request)

    async with handles(lambda: _open(server), 1) as (store,):
        lease = await taken(store)
        lease = await taken(store, lease)
        assert server.call("FLUSHALL") == b"+OK\r\n"
        assert await store.renew(lease) is None
        assert (await taken(store, None)).token == 3


async def test_a_node_obeys_a_newcomer_whose_redis_has_lost_the_lease(request: pytest.FixtureRequest) -> None:
    server = empty_redis(request)
    fence, began_s = Fence(), time.time()
    async with handles(lambda: _open(server, wall_s=lambda: began_s), 1) as (store,):
        lease = await taken(store)
        for _ in range(3):
            lease = await taken(store, lease)
        assert fence.refusal(Term("fleet", lease.token), 0.0) is None
    assert server.call("FLUSHALL") == b"+OK\r\n"

    async with handles(lambda: _open(server, wall_s=lambda: began_s + 60.0), 1) as (newcomer,):
        assert await newcomer.read() is None
        theirs = await taken(newcomer, holder="p2")

    assert fence.refusal(Term("fleet", theirs.token), 1.0) is None
    assert fence.refusal(Term("fleet", lease.token), 2.0) is not None, "the leader before it stays fenced off"


async def test_of_many_who_take_it_at_once_one_has_it(opening: Opening[LeaseStore]) -> None:
    async with handles(opening, 4) as stores:
        for _ in range(10):
            seen = await stores[0].read()
            found = await asyncio.gather(*(store.acquire(seen, holder=f"p{n}", ttl_s=TTL_S) for n, store in enumerate(stores * 3)))
            (winner,) = [lease for lease in found if lease is not None]
            assert await stores[1].read() == winner


async def test_redis_keeps_one_key_which_does_not_expire(request: pytest.FixtureRequest) -> None:
    server = empty_redis(request)

    async with handles(lambda: _open(server), 1) as (store,):
        await taken(store)
        assert server.call("KEYS", "*") == b"*1\r\n$14\r\ntidegate:lease\r\n"
        assert server.call("TTL", "tidegate:lease") == b":-1\r\n"


async def test_a_redis_that_has_ended_is_told_of_soon_and_has_the_lease_when_it_is_back(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        now_s = asyncio.get_running_loop().time
        async with handles(lambda: _open(server), 1) as (store,):
            mine = await taken(store)
            server.stop()
            try:
                for call in (store.read(), store.acquire(mine, holder="p1", ttl_s=TTL_S), store.release(mine)):
                    began_s = now_s()
                    with pytest.raises(StoreUnavailable, match=f"redis://127.0.0.1:{server.port}/0"):
                        await call
                    assert now_s() - began_s < SOON_S
            finally:
                server.start()
            found = await store.read()
            assert found is not None
            assert found.token >= 1
            assert await store.resume(mine) is None, "it may have lost that another process took it"
            renewed = await store.renew(mine)
            assert renewed is not None
            assert renewed.run not in ("", mine.run)
            assert await store.resume(renewed) is not None


async def _open(server: RedisServer, *, wall_s: Callable[[], float] = lambda: 0.0) -> LeaseStore:
    return make_redis_lease(SecretStr(server.url), wall_s=wall_s)
