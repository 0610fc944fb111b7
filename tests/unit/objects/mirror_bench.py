"""A mirror of a fake state store, and objects to put into the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from control_plane.core.scope import Right, Scope
from control_plane.objects.domain.api_key import ApiKey
from control_plane.objects.domain.price import Price
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.stored_objects import KIND_OF, StoredObject, name_of, to_body
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.mirror import ObjectMirror
from tests.fakes.stores.state_store import FakeStateStore

KEY = ApiKey("0123456789ab", "acme", (Scope(Right.INFER, "*"),), "ab" * 32, 1.0)
ALL = [KEY, Tenant("acme"), Route("fast", "text_encoder"), Price("spring", 0.0, 0.1, "EUR")]


class Bench:
    """Mirror of a fake store, which follows the store's changes while it is `running`."""

    def __init__(self, store: FakeStateStore | None = None) -> None:
        self.store = store or FakeStateStore()
        self.known = ObjectMirror(self.store, now_s=asyncio.get_running_loop().time)

    async def put(self, *values: StoredObject) -> None:
        for value in values:
            await self.store.put(KIND_OF[type(value)], name_of(value), to_body(value))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        await self.known.start()
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.known.run())
            yield task
            task.cancel()
