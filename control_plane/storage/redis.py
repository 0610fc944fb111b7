"""Connection pool of the Redis that holds state, with its checks, migrations and translation of errors.

A state Redis must not evict and must write to disk (`require_durable`), so it is never the Redis of a cache.
Every call has a deadline of a second; every failure is a StoreUnavailable, and the next call tries again. No
message contains the URL's password. Used by the Redis adapters of `objects`, `metering`, `admission` and
`fleet`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qs, urlsplit

from pydantic import SecretStr
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, OutOfMemoryError, RedisError

from control_plane.core.endpoints import authority
from control_plane.core.errors import StartupError, StoreUnavailable

_log = logging.getLogger(__name__)

_TIMEOUT_S = 1.0
_RETRY_S = 0.5
_SHOWN, _FULL = "a store of the gateway cannot be reached now; try again shortly", "a store of the gateway is full"
"""What callers of the data ports are told, who need not know where it is."""
_CONNECTIONS = 16
_PORT = 6379
_FORM = "redis://[[USER]:PASSWORD@]HOST[:PORT][/DB], rediss:// for TLS; in a password %, /, ?, # and @ are written %25, %2F, %3F, %23, %40"
_TLS_OPTIONS = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}

# In Lua, which Redis runs atomically: of several gateways that start together one does each step.
_MIGRATE = """
if tonumber(redis.call('GET', KEYS[1]) or '0') == tonumber(ARGV[1]) - 1 then
  %s
  redis.call('SET', KEYS[1], ARGV[1])
end
"""


class RedisLink:
    """Connection pool of one Redis; connections are made when they are needed."""

    def __init__(self, url: SecretStr, *, timeout_s: float = _TIMEOUT_S, setting: str = "--state-url") -> None:
        """Make the pool without connecting; `timeout_s` is of calls that name none. Raises StartupError, which
        names the `setting`, if the URL is not a Redis's.
        """
        self.place = place_of(url, setting=setting)
        self._timeout_s = timeout_s
        self.client = Redis.from_pool(
            BlockingConnectionPool.from_url(
                url.get_secret_value(),
                max_connections=_CONNECTIONS,
                timeout=timeout_s,
                # `calling` sets the deadlines: redis-py's own use asyncio.wait_for, which on Python 3.11
                # swallows a cancellation that arrives just as the wait ends.
                socket_timeout=None,
                socket_connect_timeout=None,
                retry=Retry(NoBackoff(), 0),  # a write that is sent twice may conflict with itself
                protocol=2,
                decode_responses=True,
            )
        )

    @asynccontextmanager
    async def calling(self, *, timeout_s: float | None = None) -> AsyncIterator[None]:
        """Guard a block that calls Redis. Raises StoreUnavailable if it fails or takes longer than
        `timeout_s`, or the link's own timeout.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError as exc:
            raise StoreUnavailable(f"{self.place} does not answer within {timeout_s:g} s", shown=_SHOWN) from exc
        except (RedisError, OSError, UnicodeDecodeError) as exc:  # others may have written bytes that are not UTF-8
            # Beyond `maxmemory`, or (MISCONF) since its own file cannot be written.
            is_full = isinstance(exc, OutOfMemoryError) or "No space left on device" in str(exc)
            raise StoreUnavailable(f"{self.place}: {exc}", is_full=is_full, shown=_FULL if is_full else _SHOWN) from exc

    async def require_durable(self) -> None:
        """Check that this Redis neither evicts keys nor loses them at a restart.

        Raises:
            StartupError: it would lose state; the text says what to set.
            StoreUnavailable: it cannot be reached.
        """
        async with self.calling():
            found = await self.client.info()
        # INFO and not CONFIG GET, which managed Redis services forbid.
        wrong = [
            f"`{setting}` (it is {found.get(name)})"
            for setting, name, value in (
                ("maxmemory-policy noeviction", "maxmemory_policy", "noeviction"),
                ("appendonly yes", "aof_enabled", 1),
            )
            if found.get(name) != value
        ]
        if wrong:
            raise StartupError(
                f"--state-url {self.place} would lose state: set {' and '.join(wrong)} there; a cache belongs in another Redis"
            )

    async def migrate(self, key: str, migrations: Sequence[str]) -> None:
        """Migrate the stored data to the newest layout by Lua scripts; the present layout's number is at
        `key`.

        Raises:
            StartupError: a newer tidegate has written the data.
            StoreUnavailable: Redis cannot be reached.
        """
        async with self.calling():
            found = int(await self.client.get(key) or 0)
            for number, step in enumerate(migrations[found:], start=found + 1):
                await self.client.eval(_MIGRATE % step, 1, key, str(number))
        if found > len(migrations):
            raise StartupError(
                f"{self.place} was written by a newer tidegate (layout {found}; this one knows {len(migrations)}): upgrade this one"
            )

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        async with self.calling():
            await self.client.aclose()


async def wait_until_durable(url: SecretStr, *, timeout_s: float) -> None:
    """Wait until a Redis answers and is durable, for a process that starts at the same time as it, or while it is away.

    Raises StartupError: it does not answer within `timeout_s`; or, at once, it would lose state or does not let this
    process in.
    """
    now_s = asyncio.get_running_loop().time
    link, deadline_s, is_told = RedisLink(url), now_s() + timeout_s, False
    try:
        while True:
            try:
                return await link.require_durable()
            except StoreUnavailable as exc:
                if isinstance(exc.__cause__, (AuthenticationError, NoPermissionError)):
                    raise StartupError(f"--state-url: {exc}") from exc
                if now_s() >= deadline_s:
                    waited = f"within {timeout_s:g} s (TIDEGATE_START_TIMEOUT_S)"
                    raise StartupError(
                        f"the state store cannot be used {waited}, and without it no caller's permissions are known: {exc}"
                    ) from exc
                if not is_told:
                    _log.warning("waiting for the state store, for at most %g s (TIDEGATE_START_TIMEOUT_S): %s", timeout_s, exc)
                is_told = True
            await asyncio.sleep(_RETRY_S)
    finally:
        with suppress(StoreUnavailable):
            await link.close()


async def open_link(url: SecretStr, *, layout: str, migrations: Sequence[str]) -> RedisLink:
    """Connect to a Redis, check that it is durable and migrate it. Raises StartupError, StoreUnavailable."""
    link = RedisLink(url)
    try:
        await link.require_durable()
        await link.migrate(layout, migrations)
    except BaseException:
        await link.close()
        raise
    return link


def place_of(url: SecretStr, *, setting: str) -> str:
    """Return the URL without its credentials and options. Raises StartupError, which names `setting`, if it
    is not a Redis's.
    """
    try:
        parts = urlsplit(url.get_secret_value())
        options = parse_qs(parts.query, strict_parsing=bool(parts.query)).keys()
        port = parts.port or _PORT
    except ValueError:
        raise StartupError(f"{setting} cannot be read; expected {_FORM}") from None  # the cause repeats parts of the URL
    number = parts.path.removeprefix("/")
    has_more = parts.fragment or (number and not number.isdecimal()) or options - _TLS_OPTIONS
    if parts.scheme not in ("redis", "rediss") or not parts.hostname or has_more:
        raise StartupError(f"{setting} is not a Redis; expected {_FORM}")
    return f"{parts.scheme}://{authority(parts.hostname, port)}/{number or 0}"


def server_of(url: SecretStr, *, setting: str) -> str:
    """Return `HOST:PORT`, to recognize two URLs of the same Redis server. Raises as `place_of` does."""
    return urlsplit(place_of(url, setting=setting)).netloc
