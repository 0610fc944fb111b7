"""`admission/ports.TokenBuckets` in the Redis that several gateways share: a key for each tenant whose bucket is not full.

Time is Redis's own.
"""

from __future__ import annotations

from pydantic import SecretStr

from control_plane.admission.domain.rate_limit import Drawn, RateLimit
from control_plane.storage.redis import RedisLink

_PREFIX = "tidegate:rate:"

# As `admission/domain/rate_limit.draw`, in microseconds. ARGV: of a token, the burst, tokens wanted, tokens spent. Of a time that is
# further away than two bursts the clock was put back.
_DRAW = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local interval, burst, want, spent = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local debt = math.max(0, (tonumber(redis.call('GET', KEYS[1]) or '0') or 0) - now)
debt = math.max(0, math.min(debt + spent * interval, 2 * burst * interval))
local room = math.floor(math.max(0, burst * interval - debt + 0.1) / interval)
local granted = math.min(want, room)
debt = debt + granted * interval
if debt > 0 then
  redis.call('SET', KEYS[1], string.format('%.0f', now + debt), 'PX', string.format('%.0f', math.ceil(debt / 1000) + 1000))
else
  redis.call('DEL', KEYS[1])
end
return {granted, string.format('%.3f', debt)}
"""


class RedisTokenBuckets:
    """Connects when it is first used."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._draw_script = link.client.register_script(_DRAW)

    async def draw(self, tenant: str, limit: RateLimit, *, want: int, spent: int) -> Drawn:
        """See `admission/ports.TokenBuckets.draw`."""
        async with self._link.calling():
            granted, debt = await self._draw_script(keys=[_PREFIX + tenant], args=[1e6 / limit.requests_per_s, limit.burst, want, spent])
        return Drawn(int(granted), float(debt) / 1e6)

    async def close(self) -> None:
        await self._link.close()


def make_redis_buckets(url: SecretStr) -> RedisTokenBuckets:
    """Raises StartupError: the URL is not one of a Redis."""
    return RedisTokenBuckets(RedisLink(url))
