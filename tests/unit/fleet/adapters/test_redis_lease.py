"""Tests for the lease in a Redis that has stopped answering."""

from __future__ import annotations

import asyncio

from pydantic import SecretStr

from control_plane.core.errors import StoreUnavailable
from control_plane.fleet.adapters.redis_lease import make_redis_lease
from control_plane.fleet.domain.leadership.lease import Lease


async def test_a_cancelled_leader_that_cannot_release_its_lease_is_told_so() -> None:
    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(stay_silent, "127.0.0.1", 0)
    store = make_redis_lease(SecretStr(f"redis://127.0.0.1:{silent.sockets[0].getsockname()[1]}"))
    told: list[BaseException] = []

    async def lead() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await store.release(Lease(1, "a", 5.0))
            except BaseException as exc:
                told.append(exc)

    async with asyncio.TaskGroup() as tasks:
        leader = tasks.create_task(lead())
        await asyncio.sleep(0)
        leader.cancel()
    await store.close()
    silent.close()

    assert [type(exc) for exc in told] == [StoreUnavailable]
