from __future__ import annotations

import asyncio

import pytest

from control_plane.objects.domain.stored import Kind
from control_plane.objects.domain.stored_objects import to_body
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.mirror import ObjectMirror
from control_plane.objects.mirrored_store import MirroredStore
from tests.fakes.stores.state_store import FakeStateStore

pytestmark = pytest.mark.virtual_time


async def test_what_was_put_is_in_force_when_the_put_returns() -> None:
    inner = FakeStateStore()
    known = ObjectMirror(inner, now_s=asyncio.get_running_loop().time)
    store = MirroredStore(inner, known, wait_s=60.0)
    await known.start()
    async with asyncio.TaskGroup() as tasks:
        follower = tasks.create_task(known.run())
        await store.put(Kind.TENANT, "acme", to_body(Tenant("acme")))
        assert known.tenants == {"acme": Tenant("acme")}
        follower.cancel()


async def test_a_mirror_that_does_not_follow_holds_up_a_put_for_its_limit_only() -> None:
    inner = FakeStateStore()
    now_s = asyncio.get_running_loop().time
    store = MirroredStore(inner, ObjectMirror(inner, now_s=now_s), wait_s=1.0)
    began_s = now_s()
    await store.put(Kind.TENANT, "acme", {})
    assert 1.0 <= now_s() - began_s < 1.1
    assert await inner.get(Kind.TENANT, "acme") is not None
