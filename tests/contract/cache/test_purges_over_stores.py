"""Purges over the real stores: what one gateway's administrator purges, every gateway finds no more within a second or so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from control_plane.app.stores import open_state_store
from control_plane.cache.domain.eviction import EvictingCache
from control_plane.cache.purges import Purges
from control_plane.cache.response_cache import ResponseCache
from control_plane.core.fingerprint import Fingerprint
from control_plane.models.fingerprints import Fingerprints
from control_plane.objects.mirror import ObjectMirror
from control_plane.objects.objects import Objects
from control_plane.objects.ports import StateStore
from tests.contract.stores.stores import address, handles
from tests.fakes.stores.shared_cache import FakeCache, FakeSharedCache

WAIT_S = 100.0
FINGERPRINTS = Fingerprints()
FINGERPRINTS.change({"a": Fingerprint(b"a" * 32, is_cacheable=True), "b": Fingerprint(b"b" * 32, is_cacheable=True)})


class Gateway:
    def __init__(self, store: StateStore, shared: FakeCache) -> None:
        self.known = ObjectMirror(store)
        self.purges = Purges(Objects(store), self.known)
        self._cache = ResponseCache(
            FINGERPRINTS, EvictingCache(2**20), FakeSharedCache(shared), generation_of=self.known.purge_generation_of
        )

    def keep(self, model: str) -> None:
        scope = self._cache.scope(model, None, "")
        assert scope is not None
        self._cache.put(scope, scope.key(b"request"), b"answer of " + model.encode(), cost_units=10.0)

    async def finds(self, model: str) -> bool:
        scope = self._cache.scope(model, None, "")
        assert scope is not None
        return await self._cache.get_many(scope, [scope.key(b"request")], cost_units=None, timeout_s=30.0) != [None]


@pytest.mark.parametrize("name", ["sqlite", "redis"])
async def test_what_was_purged_is_found_nowhere_and_all_else_is(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    where = address(name, request, tmp_path)

    async with handles(lambda: open_state_store(*where), 2) as stores, asyncio.TaskGroup() as tasks:
        shared = FakeCache()
        here, there = (Gateway(store, shared) for store in stores)
        for gateway in (here, there):
            await gateway.known.start()
        following = [tasks.create_task(gateway.known.run()) for gateway in (here, there)]
        for purge, is_all in ((lambda: here.purges.purge("a"), False), (here.purges.purge, True)):
            here.keep("a")
            here.keep("b")
            assert await there.finds("a")
            assert await there.finds("b")
            await purge()
            assert not await here.finds("a")
            assert await here.finds("b") is not is_all
            async with asyncio.timeout(WAIT_S):
                while await there.finds("a"):
                    await asyncio.sleep(0.01)
            assert await there.finds("b") is not is_all
        for task in following:
            task.cancel()
