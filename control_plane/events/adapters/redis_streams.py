"""Redis adapter of `events/ports.EventStreams`: streams `tidegate:events:NAME`, each entry with one field `event`.

Any Redis client subscribes with XREAD or, in a consumer group, XREADGROUP. Each stream keeps about so many of its newest
entries: Redis removes the others whether or not they were read. Gateways with stores of their own may share it: positions
are kept for each store.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import orjson
from pydantic import SecretStr

from control_plane.core.errors import StartupError, StoreUnavailable
from control_plane.events.domain.stream import Stream
from control_plane.events.ports import Position
from control_plane.storage.redis import RedisLink, server_of

_log = logging.getLogger(__name__)

PREFIX = "tidegate:events:"
_POSITION = "tidegate:events:position:"
_SETTING = "--events-url"
_TIMEOUT_S = 5.0

# KEYS: stream. ARGV: entries that are kept, the events.
_APPEND = """
for i = 2, #ARGV do redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'event', ARGV[i]) end
"""

# KEYS: stream, position. ARGV: entries that are kept, the position before and after, the events.
_ADVANCE = """
if (redis.call('GET', KEYS[2]) or '') ~= ARGV[2] then return 0 end
for i = 4, #ARGV do redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'event', ARGV[i]) end
redis.call('SET', KEYS[2], ARGV[3])
return 1
"""


class RedisEventStreams:
    """Event streams in Redis; made by `make_redis_streams`, and connected with the first call."""

    def __init__(self, link: RedisLink, *, keep: int, store: str) -> None:
        """`store` names the store whose logs are published, the same for all gateways that share it."""
        self._link = link
        self._positions = f"{_POSITION}{store}:"
        self._keep = keep
        self._append_script, self._advance_script = map(link.client.register_script, (_APPEND, _ADVANCE))
        self._is_checked = False

    async def append(self, stream: Stream, events: Sequence[bytes]) -> None:
        async with self._link.calling(timeout_s=_TIMEOUT_S):
            await self._append_script(keys=[PREFIX + stream], args=[self._keep, *events])

    async def position(self, stream: Stream) -> Position:
        async with self._link.calling(timeout_s=_TIMEOUT_S):
            if not self._is_checked:
                await self._check()
            found: Any = await self._link.client.get(self._positions + stream)
        position = _position_in(found) if found else Position()
        if position is None:
            raise StoreUnavailable(f"{self._link.place}: {self._positions}{stream} is no position of events; delete it")
        return position

    async def advance(self, stream: Stream, events: Sequence[bytes], *, before: Position, after: Position) -> bool:
        async with self._link.calling(timeout_s=_TIMEOUT_S):
            keys = [PREFIX + stream, self._positions + stream]
            return bool(await self._advance_script(keys=keys, args=[self._keep, _text_of(before), _text_of(after), *events]))

    async def close(self) -> None:
        await self._link.close()

    async def _check(self) -> None:
        policy = str((await self._link.client.info("memory")).get("maxmemory_policy", ""))
        if policy.startswith("allkeys"):
            _log.warning("%s %s may evict whole streams of events: set `maxmemory-policy noeviction` there", _SETTING, self._link.place)
        self._is_checked = True


def make_redis_streams(url: SecretStr, *, keep: int, store: str, cache_url: SecretStr | None = None) -> RedisEventStreams:
    """Make the streams without connecting. Raises StartupError: the URL is not a Redis's, or it is the cache's, which evicts."""
    if cache_url is not None and server_of(url, setting=_SETTING) == server_of(cache_url, setting="--cache-url"):
        raise StartupError(f"{_SETTING} and --cache-url are the same Redis: a cache evicts what subscribers have not read; give it another")
    return RedisEventStreams(RedisLink(url, timeout_s=_TIMEOUT_S, setting=_SETTING), keep=keep, store=store)


def _position_in(text: str) -> Position | None:
    try:
        number, id_ = orjson.loads(text)
        position = Position(int(number), str(id_))
    except (ValueError, TypeError):
        return None
    return position if _text_of(position) == text else None  # `advance` compares texts


def _text_of(position: Position) -> str:
    return orjson.dumps([position.number, position.id]).decode() if position.number else ""
