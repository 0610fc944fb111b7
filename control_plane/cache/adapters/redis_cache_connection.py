"""One connection to the Redis of the shared cache, without redis-py's pool and retries, which would keep
callers waiting.

Used by `redis_cache_lookups` and `redis_cache_writes`. Errors of redis-py are raised as they are: no caller
tells them apart, each drops the connection and logs what `describe` says.
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
"""Time limit for connecting: TCP, TLS, AUTH and SELECT together. It is spent in the background, so it may be
generous.
"""

_MAX_REASON_CHARS = 200
"""Most characters of another program's error message that are logged."""


class CacheConnection:
    """Redis connection for one call at a time; it must be opened first, and opened again after a call that
    raised.
    """

    def __init__(self, url: SecretStr) -> None:
        """Prepare without connecting. Raises StartupError: the URL is not one of a Redis."""
        self.place = place_of(url, setting="--cache-url")
        self._pool = ConnectionPool.from_url(
            url.get_secret_value(),
            # Callers have the deadlines: redis-py keeps its own by asyncio.wait_for, which on Python 3.11
            # swallows a cancellation that comes when the wait is just over.
            socket_timeout=None,
            socket_connect_timeout=None,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        self._connection: AbstractConnection | None = None
        self._transport: asyncio.WriteTransport | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the connection was opened and not dropped since."""
        return self._transport is not None

    async def open(self) -> None:
        """Connect anew, within `_OPEN_S`. Raises TimeoutError, OSError or redis-py's errors."""
        self.drop()
        self._connection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        assert self._connection is not None
        async with LoopTimeout(_OPEN_S):
            await self._connection.connect()
        assert self._connection._writer is not None
        self._transport = self._connection._writer.transport

    def drop(self) -> None:
        """Abort the connection at once. Idempotent.

        redis-py's `disconnect` would wait until all is sent, and a Redis that hangs takes nothing.
        """
        connection, self._connection = self._connection, None
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        if connection is not None:
            connection._close()  # type: ignore[no-untyped-call]

    async def get_many(self, names: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `names`, None for each that is not there. Raises ResponseError: the answer is
        not an MGET's.
        """
        values = await self._call("MGET", *names)
        if not isinstance(values, list) or len(values) != len(names):
            raise ResponseError("it does not answer as Redis does")
        return [value if isinstance(value, bytes) else None for value in values]

    async def is_in_sync(self) -> bool:
        """Whether Redis's next answer belongs to this process's last command, asked with an ECHO of random
        bytes.
        """
        nonce = os.urandom(8)
        try:
            return await self._call("ECHO", nonce) == nonce
        except ResponseError:
            return False

    async def set_many(self, entries: Iterable[tuple[bytes, bytes, int]]) -> list[ResponseError | None]:
        """Write entries `(name, value, ttl_s)` in one pipeline; return for each the error it was refused
        with, or None.
        """
        assert self._connection is not None
        commands = [("SET", name, value, "EX", ttl_s) for name, value, ttl_s in entries]
        await self._connection.send_packed_command(self._connection.pack_commands(commands))
        return [await self._refusal() for _ in commands]

    async def memory(self) -> dict[str, str]:
        """Return the fields of `INFO memory`; empty where this user may not read them."""
        try:
            text = await self._call("INFO", "memory")
        except ResponseError:
            return {}
        lines = (line.partition(":") for line in text.decode("ascii", "replace").splitlines()) if isinstance(text, bytes) else ()
        return {name: value for name, _, value in lines}

    def describe(self, exc: Exception) -> str:
        """Describe an error for the log.

        The text of an unexpected error is left out: it may quote what some other program answered.
        """
        if isinstance(exc, TimeoutError):
            return "it does not answer"
        is_telling = isinstance(exc, RedisConnectionError | OSError | ResponseError)
        return str(exc)[:_MAX_REASON_CHARS] if is_telling else f"it does not answer as Redis does ({type(exc).__name__})"

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
