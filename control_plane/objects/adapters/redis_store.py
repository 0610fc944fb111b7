"""Redis adapter of `objects/ports.StateStore`, for several gateways.

A hash holds the objects (field `kind/name`; an empty value for a deleted one). A sorted set holds each
object's resource_version as its score, so that the changes since a version are a range of it. Every change is
one Lua script, hence atomic, and publishes a message that wakes those who wait; since Redis may lose messages
they also poll every half second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from pydantic import SecretStr

from control_plane.core.errors import ObjectNotFound
from control_plane.objects.domain.stored import Kind, Stored, check_expected, check_not_older, kind_named
from control_plane.storage.redis import RedisLink, open_link

_POLL_S = 0.5
_LONGER_S = 2.0
"""Time by which a long poll may exceed its timeout before the connection counts as dead; other calls are
bounded more closely.
"""
_RESTORE_TIMEOUT_S = 30.0
_LAYOUT = "tidegate:state:layout"
_KEYS = ["tidegate:state:objects", "tidegate:state:versions"]
_CHANGED = "tidegate:state:changed"
_MIGRATIONS = ("",)  # nothing to do for the first layout: the first write creates it

_COMMON = """
local objects, versions = KEYS[1], KEYS[2]
local function last_change()
  return tonumber(redis.call('ZRANGE', versions, -1, -1, 'WITHSCORES')[2] or '0')
end
local function version_of(field)
  if (redis.call('HGET', objects, field) or '') == '' then return 0 end
  return tonumber(redis.call('ZSCORE', versions, field))
end
local function write(field, body)
  local version = last_change() + 1
  redis.call('HSET', objects, field, body)
  redis.call('ZADD', versions, version, field)
  return version
end
"""

# ARGV: channel, field, body ('' to delete), the expected version ('' for any). Returns the new version (0:
# refused) and the one before.
_WRITE = (
    _COMMON
    + """
local current = version_of(ARGV[2])
if (ARGV[4] ~= '' and tonumber(ARGV[4]) ~= current) or (ARGV[3] == '' and current == 0) then return {0, current} end
local version = write(ARGV[2], ARGV[3])
redis.call('PUBLISH', ARGV[1], version)
return {version, current}
"""
)

# ARGV: field. Returns its body ('' if there is none) and version.
_READ = _COMMON + "return {redis.call('HGET', objects, ARGV[1]) or '', version_of(ARGV[1])}"

# ARGV: a version. Returns the store's last version, then field, version and body of all objects that changed
# since, in order.
_CHANGES = (
    _COMMON
    + """
local answer = {last_change()}
local found = redis.call('ZRANGE', versions, '(' .. ARGV[1], '+inf', 'BYSCORE', 'WITHSCORES')
for i = 1, #found, 2 do
  answer[#answer + 1] = {found[i], tonumber(found[i + 1]), redis.call('HGET', objects, found[i])}
end
return answer
"""
)

# ARGV: the beginning of the fields of a kind. Returns field, version and body of all objects of that kind.
_LIST = (
    _COMMON
    + """
local answer = {}
local found = redis.call('ZRANGE', versions, 0, -1, 'WITHSCORES')
for i = 1, #found, 2 do
  if string.sub(found[i], 1, #ARGV[1]) == ARGV[1] then
    local body = redis.call('HGET', objects, found[i])
    if body and body ~= '' then answer[#answer + 1] = {found[i], tonumber(found[i + 1]), body} end
  end
end
return answer
"""
)

# ARGV: channel, then field and body of each object. Objects that are not among them are deleted, as changes
# with numbers of their own, so that mirrors learn of them.
_RESTORE = (
    _COMMON
    + """
local kept = {}
for i = 2, #ARGV, 2 do kept[ARGV[i]] = true end
for _, field in ipairs(redis.call('HKEYS', objects)) do
  if not kept[field] and version_of(field) ~= 0 then write(field, '') end
end
for i = 2, #ARGV, 2 do write(ARGV[i], ARGV[i + 1]) end
redis.call('PUBLISH', ARGV[1], last_change())
"""
)


class RedisStateStore:
    """State store in Redis; `open_redis_state` opens it.

    Each write is one script with its check of the expected version: no other gateway can write in between.
    """

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._write_script = link.client.register_script(_WRITE)
        self._read_script = link.client.register_script(_READ)
        self._changes_script = link.client.register_script(_CHANGES)
        self._list_script = link.client.register_script(_LIST)
        self._restore_script = link.client.register_script(_RESTORE)

    async def get(self, kind: Kind, name: str) -> Stored | None:
        async with self._link.calling():
            body, version = await self._read_script(keys=_KEYS, args=[_field(kind, name)])
        return Stored(kind, name, version, orjson.loads(body)) if body else None

    async def list_all(self, kind: Kind) -> list[Stored]:
        async with self._link.calling():
            found = await self._list_script(keys=_KEYS, args=[_field(kind, "")])
        return sorted((_stored(*entry) for entry in found), key=lambda stored: stored.name)

    async def put(self, kind: Kind, name: str, body: Mapping[str, Any], *, expected: int | None = None) -> Stored:
        version, current = await self._write(kind, name, orjson.dumps(body).decode(), expected)
        if not version:
            check_expected(kind, name, expected=expected, current=current)
        return Stored(kind, name, version, body)

    async def delete(self, kind: Kind, name: str, *, expected: int | None = None) -> None:
        version, current = await self._write(kind, name, "", expected)
        if not current:
            raise ObjectNotFound(f"there is no {kind.replace('_', ' ')} {name!r}")
        if not version:
            check_expected(kind, name, expected=expected, current=current)

    async def changes(self, since: int, *, timeout_s: float) -> list[Stored]:
        found = await self._changes(since)
        return found if found or timeout_s <= 0 else await self._wait(since, timeout_s)

    async def restore(self, objects: Iterable[Stored]) -> None:
        pairs = [text for stored in objects for text in (_field(stored.kind, stored.name), orjson.dumps(stored.body).decode())]
        async with self._link.calling(timeout_s=_RESTORE_TIMEOUT_S):
            await self._restore_script(keys=_KEYS, args=[_CHANGED, *pairs])

    async def close(self) -> None:
        await self._link.close()

    async def _write(self, kind: Kind, name: str, body: str, expected: int | None) -> tuple[int, int]:
        async with self._link.calling():
            version, current = await self._write_script(
                keys=_KEYS, args=[_CHANGED, _field(kind, name), body, "" if expected is None else expected]
            )
        return version, current

    async def _changes(self, since: int) -> list[Stored]:
        async with self._link.calling():
            last, *found = await self._changes_script(keys=_KEYS, args=[since])
        check_not_older(since=since, last=last)
        return [_stored(*entry) for entry in found]

    async def _wait(self, since: int, timeout_s: float) -> list[Stored]:
        """Poll for changes until there are some or the time is over; a message ends each pause early."""
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + timeout_s
        async with self._link.calling(timeout_s=timeout_s + _LONGER_S), self._link.client.pubsub() as notices:
            # Subscribed before the first read: a change that the read misses sends a message.
            await notices.subscribe(_CHANGED)
            while not (found := await self._changes(since)):
                left_s = deadline_s - now_s()
                if left_s <= 0:
                    break
                await notices.get_message(ignore_subscribe_messages=True, timeout=min(_POLL_S, left_s))
        return found


async def open_redis_state(url: SecretStr) -> RedisStateStore:
    """Connect, and bring the layout up to date. Raises StartupError, StoreUnavailable."""
    return RedisStateStore(await open_link(url, layout=_LAYOUT, migrations=_MIGRATIONS))


def _field(kind: str, name: str) -> str:
    return f"{kind}/{name}"


def _stored(field: str, version: int, body: str) -> Stored:
    kind, _, name = field.partition("/")
    return Stored(kind_named(kind), name, version, orjson.loads(body) if body else None)
