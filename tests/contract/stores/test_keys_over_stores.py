"""Keys over the real stores: what an administrator does with one handle is what gateways with others let in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from control_plane.app.stores import open_state_store
from control_plane.auth.authentication import Authentication
from control_plane.auth.domain.auth_backoff import AttemptLimits, AuthBackoff
from control_plane.auth.keys import Keys
from control_plane.core.errors import Unauthenticated
from control_plane.core.principal import Credentials
from control_plane.core.scope import Right, Scope
from control_plane.objects.domain.stored import Kind
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.mirror import ObjectMirror
from control_plane.objects.objects import Objects
from control_plane.objects.ports import StateStore
from tests.contract.stores.stores import Opening, address, empty_redis, handles

SCOPES = (Scope(Right.INFER, "*"),)
WAIT_S = 80.0


class Gateway:
    def __init__(self, store: StateStore) -> None:
        self.known = ObjectMirror(store)
        self._authentication = Authentication(self.known, None, attempts=AuthBackoff(AttemptLimits(failures=10**6)))

    def accepts(self, text: str) -> bool:
        try:
            self._authentication.authenticate(Credentials(None, text, "192.0.2.1"))
        except Unauthenticated:
            return False
        return True


@pytest.fixture(params=["sqlite", "redis"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Opening[StateStore]:
    where = address(request.param, request, tmp_path)
    return lambda: open_state_store(*where)


@asynccontextmanager
async def gateways(*stores: StateStore) -> AsyncIterator[list[Gateway]]:
    made = [Gateway(store) for store in stores]
    async with asyncio.TaskGroup() as tasks:
        for gateway in made:
            await gateway.known.start()
        running = [tasks.create_task(gateway.known.run()) for gateway in made]
        yield made
        for task in running:
            task.cancel()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def test_made_rotated_and_revoked_for_all_gateways(opening: Opening[StateStore]) -> None:
    async with handles(opening, 3) as (own, *others), gateways(*others) as both:
        keys = Keys(own)
        await Objects(own).put(Tenant("acme"), 0)
        old, old_text = await keys.create("acme", SCOPES)
        await until(lambda: all(gateway.accepts(old_text) for gateway in both))
        _, text = await keys.rotate(old.id, overlap_s=3600.0)
        await until(lambda: all(gateway.accepts(text) for gateway in both))
        assert all(gateway.accepts(old_text) for gateway in both)
        await keys.revoke(old.id)
        await until(lambda: not any(gateway.accepts(old_text) for gateway in both))
        assert all(gateway.accepts(text) for gateway in both)


async def test_a_redis_that_is_emptied_locks_nobody_out(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server = empty_redis(request)
    async with (
        handles(lambda: open_state_store(*address("redis", request, tmp_path)), 2) as (own, other),
        gateways(other) as (gateway,),
    ):
        keys = Keys(own)
        await Objects(own).put(Tenant("acme"), 0)
        _, text = await keys.create("acme", SCOPES)
        await until(lambda: gateway.accepts(text))
        backup = [stored for stored in await own.changes(0, timeout_s=0) if stored.body is not None]
        empty_redis(request)
        await until(lambda: gateway.known.regression != "")
        assert gateway.accepts(text)
        assert not gateway.known.is_current
        await Objects(own).put(Tenant("other"), 0)
        await until(lambda: "other" in gateway.known.tenants)
        assert gateway.accepts(text)
        await own.restore([*backup, *await own.list_all(Kind.TENANT)])
        await until(lambda: gateway.known.is_current)
        assert gateway.accepts(text)
        assert server.process.poll() is None


async def test_a_redis_that_dies_and_comes_back(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server = empty_redis(request)
    try:
        async with (
            handles(lambda: open_state_store(*address("redis", request, tmp_path)), 2) as (own, other),
            gateways(other) as (gateway,),
        ):
            keys = Keys(own)
            await Objects(own).put(Tenant("acme"), 0)
            key, text = await keys.create("acme", SCOPES)
            await until(lambda: gateway.accepts(text))
            server.kill()
            await until(lambda: not gateway.known.is_current)
            assert gateway.accepts(text)
            server.start()
            await keys.revoke(key.id)
            await until(lambda: gateway.known.is_current and not gateway.accepts(text))
    finally:
        if server.process.poll() is not None:
            server.start()
