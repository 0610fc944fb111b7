"""What every `ports.OwnerLine` does, and its fake."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from pydantic import SecretStr

from control_plane.adapters.redis_owner_line import make_redis_owner_line
from control_plane.domain.errors import StoreUnavailable
from control_plane.ports import OwnerLine
from tests.aio import run
from tests.contract.stores import Opening, empty_redis, handles
from tests.fakes.owner_line import FakeOwnerLine
from tests.redis_server import redis_server

PATIENCE_S = 5.0


@pytest.fixture(params=["fake", "redis"])
def opening(request: pytest.FixtureRequest) -> Opening[OwnerLine]:
    shared = FakeOwnerLine()
    url = SecretStr(empty_redis(request).url) if request.param == "redis" else None

    async def open_one() -> OwnerLine:
        return make_redis_owner_line(url) if url is not None else shared

    return open_one


def test_what_is_asked_for_is_taken_once_each_in_order(opening: Opening[OwnerLine]) -> None:
    async def main() -> None:
        async with handles(opening, 3) as (one, other, owner):
            await one.ask(["a", "b"])
            await other.ask(["b", "c"])
            assert await owner.take(timeout_s=PATIENCE_S) == ["a", "b", "c"]
            assert await owner.take(timeout_s=0.1) == []

    run(main())


def test_who_waits_is_told_at_once(opening: Opening[OwnerLine]) -> None:
    async def main() -> None:
        async with handles(opening, 2) as (one, owner):
            began_s = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                taking = tasks.create_task(owner.take(timeout_s=PATIENCE_S))
                await asyncio.sleep(0.2)
                await one.ask(["a"])
            assert taking.result() == ["a"]
            assert time.monotonic() - began_s < PATIENCE_S

    run(main())


def test_a_redis_that_has_ended_is_unavailable(tmp_path: Path) -> None:
    async def main() -> None:
        with redis_server(tmp_path) as redis:
            line = make_redis_owner_line(SecretStr(redis.url))
            await line.ask(["a"])
        for call in (line.ask(["b"]), line.take(timeout_s=0.1)):
            with pytest.raises(StoreUnavailable):
                await call
        await line.close()

    run(main())
