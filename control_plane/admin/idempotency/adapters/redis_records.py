"""Redis adapter of `admin/idempotency/ports.IdempotencyRecords`, for several gateways.

A hash has the records (`DIGEST ANSWER`), and a sorted set until when each is kept, by Redis's own clock. Each call is one
Lua script, which first deletes what is no longer kept; both keys expire by themselves when nobody calls any more.
"""

from __future__ import annotations

from pydantic import SecretStr

from control_plane.admin.idempotency.ports import KEEP_S, MOST, MOST_OF_CALLER, Record, caller_of, require_room
from control_plane.storage.redis import RedisLink

_KEYS = ["tidegate:admin:records", "tidegate:admin:records:until"]
_KEEP_MS = int(KEEP_S * 1000)

# ARGV: milliseconds for which a record is kept.
_COMMON = """
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function delete(names)
  for _, name in ipairs(names) do
    redis.call('HDEL', KEYS[1], name)
    redis.call('ZREM', KEYS[2], name)
  end
end
delete(redis.call('ZRANGE', KEYS[2], '-inf', now_ms, 'BYSCORE'))
-- What would be kept for longer than that was written before the clock was set back.
delete(redis.call('ZRANGE', KEYS[2], string.format('(%.0f', now_ms + ARGV[1]), '+inf', 'BYSCORE'))
"""

# ARGV: ..., name, digest, its caller's part of the name, how many of the caller's there may be, and how many in all. Returns
# the earlier record, 0 where it was made, or how many of the caller's there are, and in all.
_BEGIN = (
    _COMMON
    + """
local found = redis.call('HGET', KEYS[1], ARGV[2])
if found then return found end
local names, own = redis.call('ZRANGE', KEYS[2], 0, -1), 0
for _, name in ipairs(names) do
  if string.sub(name, 1, #ARGV[4]) == ARGV[4] then own = own + 1 end
end
if own >= tonumber(ARGV[5]) or #names >= tonumber(ARGV[6]) then return {own, #names} end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3] .. ' ')
redis.call('ZADD', KEYS[2], now_ms + ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return 0
"""
)

# ARGV: ..., name, digest, the answer.
_ANSWER = (
    _COMMON
    + """
if redis.call('HGET', KEYS[1], ARGV[2]) == ARGV[3] .. ' ' then redis.call('HSET', KEYS[1], ARGV[2], ARGV[3] .. ' ' .. ARGV[4]) end
"""
)

# ARGV: ..., name, digest.
_FORGET = (
    _COMMON
    + """
if redis.call('HGET', KEYS[1], ARGV[2]) == ARGV[3] .. ' ' then delete({ARGV[2]}) end
"""
)


class RedisIdempotencyRecords:
    """Idempotency records in Redis; the connection is made by the first call."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._begin, self._answer, self._forget = map(link.client.register_script, (_BEGIN, _ANSWER, _FORGET))

    async def begin(self, name: str, digest: str) -> Record | None:
        async with self._link.calling():
            args: list[str | int] = [_KEEP_MS, name, digest, caller_of(name), MOST_OF_CALLER, MOST]
            found: str | int | list[int] = await self._begin(keys=_KEYS, args=args)
        if isinstance(found, list):
            require_room(*found)
        return Record(*found.split(" ", 1)) if isinstance(found, str) else None

    async def answer(self, name: str, digest: str, sealed: str) -> None:
        async with self._link.calling():
            await self._answer(keys=_KEYS, args=[_KEEP_MS, name, digest, sealed])

    async def forget(self, name: str, digest: str) -> None:
        async with self._link.calling():
            await self._forget(keys=_KEYS, args=[_KEEP_MS, name, digest])

    async def close(self) -> None:
        await self._link.close()


def make_redis_records(url: SecretStr) -> RedisIdempotencyRecords:
    """Make the store without connecting. Raises StartupError: the URL is not one of a Redis."""
    return RedisIdempotencyRecords(RedisLink(url))
