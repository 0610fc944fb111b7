"""One connection to a Redis that is a cache: made anew whenever it is opened, and gone at once when it is dropped.

Redis-py's pools and retries would keep a caller waiting. What goes wrong is raised as it is, since nobody reacts to it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence

from pydantic import SecretStr
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from control_plane.cache.adapters.loop_timeout import LoopTimeout
from control_plane.storage.redis import place_of

_OPEN_S = 1.0
"""For TCP, TLS, password and database, in the background."""

_MOST_REASON_CHARS = 200


class CacheConnection:
    """Calls follow each other; each needs `open` before, also after one that raised."""

    def __init__(self, url: SecretStr) -> None:
        """Raises StartupError: the URL is not one of a Redis."""
        self.place = place_of(url, setting="--cache-url")
        self._pool = ConnectionPool.from_url(
            url.get_secret_value(),
            # Callers have the deadlines: redis-py keeps its own by asyncio.wait_for, which on Python 3.11 swallows a
            # cancellation that comes when the wait is just over.
            socket_timeout=None,
            socket_connect_timeout=None,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        self._connection: AbstractConnection | None = None
        self._transport: asyncio.WriteTransport | None = None

    @property
    def is_open(self) -> bool:
        """Whether it was opened and not dropped since."""
        return self._transport is not None

    async def open(self) -> None:
        """Connect, in a second at most."""
        self.drop()
        self._connection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        assert self._connection is not None
        async with LoopTimeout(_OPEN_S):
            await self._connection.connect()
        assert self._connection._writer is not None
        self._transport = self._connection._writer.transport

    def drop(self) -> None:
        """Without waiting for what is not sent: `disconnect` would, and a Redis that hangs takes nothing. Idempotent."""
        connection, self._connection = self._connection, None
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        if connection is not None:
            connection._close()  # type: ignore[no-untyped-call]

    async def get_many(self, names: Sequence[bytes]) -> list[bytes | None]:
        values = await self._call("MGET", *names)
        if not isinstance(values, list) or len(values) != len(names):
            raise ResponseError("it does not answer as Redis does")
        return [value if isinstance(value, bytes) else None for value in values]

    async def is_in_step(self) -> bool:
        """Whether what is answered belongs to what was asked just before."""
        nonce = os.urandom(8)
        try:
            return await self._call("ECHO", nonce) == nonce
        except ResponseError:
            return False

    async def set_many(self, entries: Iterable[tuple[bytes, bytes, int]]) -> list[ResponseError | None]:
        """Write `(name, value, ttl_s)`; for each why it was refused, None where it was not."""
        assert self._connection is not None
        commands = [("SET", name, value, "EX", ttl_s) for name, value, ttl_s in entries]
        await self._connection.send_packed_command(self._connection.pack_commands(commands))
        return [await self._refusal() for _ in commands]

    async def memory(self) -> dict[str, str]:
        """What Redis tells of its memory; empty where it does not tell everybody."""
        try:
            text = await self._call("INFO", "memory")
        except ResponseError:
            return {}
        lines = (line.partition(":") for line in text.decode("ascii", "replace").splitlines()) if isinstance(text, bytes) else ()
        return {name: value for name, _, value in lines}

    def describe(self, exc: Exception) -> str:
        """For the log; of what only redis-py could not make sense of, nothing is repeated: it may be anybody's answer."""
        if isinstance(exc, TimeoutError):
            return "it does not answer"
        is_telling = isinstance(exc, RedisConnectionError | OSError | ResponseError)
        return str(exc)[:_MOST_REASON_CHARS] if is_telling else f"it does not answer as Redis does ({type(exc).__name__})"

    async def _refusal(self) -> ResponseError | None:
        assert self._connection is not None
        try:
            await self._connection.read_response()
        except ResponseError as exc:
            return exc
        return None

    async def _call(self, *words: str | bytes) -> object:
        assert self._connection is not None
        await self._connection.send_command(*words)
        return await self._connection.read_response()
