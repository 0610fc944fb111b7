"""`fleet/ports.LeaseStore` in the Redis that gateways share: one hash, changed by Lua scripts that compare it
first (compare-and-set).

The key has no expiry. Redis would have to know the time for that, and a clock that is put forward would give
the fleet two leaders.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from pydantic import SecretStr

from control_plane.fleet.domain.leadership.lease import Lease, next_token
from control_plane.storage.redis import RedisLink

_KEY = "tidegate:lease"
_RELEASE_TIMEOUT_S = 1.0

# The id of this run of the server, which another one has after a restart or a failover; only a restart can lose
# writes. Empty where INFO is forbidden.
_RUN = """
local function run_id()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and info:match('run_id:(%w+)') or ''
end
"""

# ARGV: the token, holder and beat that were seen (empty if there was no lease), then the new token, holder
# and ttl in milliseconds.
_TAKE = (
    _RUN
    + """
local now = redis.call('HMGET', KEYS[1], 'token', 'holder', 'beat')
for i = 1, 3 do
  if (now[i] or '') ~= ARGV[i] then return {0, ''} end
end
redis.call('HSET', KEYS[1], 'token', ARGV[4], 'holder', ARGV[5], 'ttl_ms', ARGV[6], 'beat', 0, 'is_released', 0)
return {1, run_id()}
"""
)

# ARGV: token, holder, and the run that this must be (empty: any). Returns the new beat and the run; 0 if another
# process holds the lease, or in another run.
_RENEW = (
    _RUN
    + """
local now, run = redis.call('HMGET', KEYS[1], 'token', 'holder', 'is_released'), run_id()
if now[1] ~= ARGV[1] or now[2] ~= ARGV[2] or now[3] ~= '0' then return {0, run} end
if ARGV[3] ~= '' and ARGV[3] ~= run then return {0, run} end
return {redis.call('HINCRBY', KEYS[1], 'beat', 1), run}
"""
)

_RELEASE = """
local now = redis.call('HMGET', KEYS[1], 'token', 'holder', 'is_released')
if now[1] == ARGV[1] and now[2] == ARGV[2] and now[3] == '0' then
  redis.call('HINCRBY', KEYS[1], 'beat', 1)
  redis.call('HSET', KEYS[1], 'is_released', 1)
end
"""


class RedisLease:
    """Redis-backed lease store; it connects when it is first used."""

    def __init__(self, link: RedisLink, *, key: str = _KEY, wall_s: Callable[[], float] = time.time) -> None:
        self._link = link
        self._wall_s = wall_s
        self._key = key
        self._take_script, self._renew_script, self._release_script = map(link.client.register_script, (_TAKE, _RENEW, _RELEASE))
        self._token = 0
        """The highest token seen: tokens go on growing even if Redis has lost the record."""

    async def read(self) -> Lease | None:
        async with self._link.calling():
            found = await self._link.client.hgetall(self._key)
        if not found:
            return None
        lease = Lease(
            token=int(found["token"]),
            holder=str(found["holder"]),
            ttl_s=int(found["ttl_ms"]) / 1000,
            beat=int(found["beat"]),
            is_released=found["is_released"] == "1",
        )
        self._token = max(self._token, lease.token)
        return lease

    async def acquire(self, seen: Lease | None, *, holder: str, ttl_s: float) -> Lease | None:
        before = ("", "", "") if seen is None else (seen.token, seen.holder, seen.beat)
        # Tokens must grow even if Redis has lost the record, so the highest one seen counts as well.
        mine = Lease(next_token(max(self._token, seen.token if seen else 0), self._wall_s()), holder, ttl_s)
        async with self._link.calling():
            was_taken, run = await self._take_script(keys=[self._key], args=[*before, mine.token, holder, round(ttl_s * 1000)])
        if not was_taken:
            return None
        self._token = max(self._token, mine.token)
        return replace(mine, run=run)

    async def renew(self, lease: Lease) -> Lease | None:
        return await self._renew(lease, in_run="")

    async def resume(self, lease: Lease) -> Lease | None:
        return await self._renew(lease, in_run=lease.run) if lease.run else None

    async def _renew(self, lease: Lease, *, in_run: str) -> Lease | None:
        async with self._link.calling():
            beat, run = await self._renew_script(keys=[self._key], args=[lease.token, lease.holder, in_run])
        return Lease(lease.token, lease.holder, lease.ttl_s, beat, run=run) if beat else None

    async def release(self, lease: Lease) -> None:
        # Called while its task is being cancelled, where Python 3.11.2's asyncio.timeout raises CancelledError.
        async with self._link.calling(timeout_s=2 * _RELEASE_TIMEOUT_S):
            await asyncio.wait_for(self._release_script(keys=[self._key], args=[lease.token, lease.holder]), _RELEASE_TIMEOUT_S)

    async def close(self) -> None:
        await self._link.close()


def make_redis_lease(url: SecretStr, *, fleet: str = "", wall_s: Callable[[], float] = time.time) -> RedisLease:
    """Return the lease store of the fleet of this name. Raises StartupError: the URL is not that of a
    Redis."""
    return RedisLease(RedisLink(url), key=f"{_KEY}:{fleet}" if fleet else _KEY, wall_s=wall_s)
