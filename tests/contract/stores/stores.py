"""What the suites of stores are run over: each by name, as often opened as a case likes, all on the same content."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import pytest
from pydantic import SecretStr

from control_plane.storage.redis import RedisLink
from tests.redis_server import RedisServer

LONG_S = 60.0
NAMES = ("fake", "sqlite", "redis")


class Closable(Protocol):
    async def close(self) -> None: ...


StoreT = TypeVar("StoreT", bound=Closable)
Opening = Callable[[], Awaitable[StoreT]]


def address(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> tuple[SecretStr | None, Path]:
    """Where an empty one is, as settings say it."""
    if name != "redis":
        return None, tmp_path
    return SecretStr(empty_redis(request).url), tmp_path


def empty_redis(request: pytest.FixtureRequest) -> RedisServer:
    server: RedisServer = request.getfixturevalue("redis")
    assert server.call("FLUSHALL") == b"+OK\r\n"
    return server


def link(server: RedisServer) -> RedisLink:
    """One that also waits for a Redis on a machine that stands still for seconds."""
    return RedisLink(SecretStr(server.url), timeout_s=LONG_S)


@asynccontextmanager
async def handles(opening: Opening[StoreT], count: int) -> AsyncIterator[list[StoreT]]:
    """So many of one store."""
    async with AsyncExitStack() as opened:
        stores = [await opening() for _ in range(count)]
        for store in stores:
            opened.push_async_callback(store.close)
        yield stores
