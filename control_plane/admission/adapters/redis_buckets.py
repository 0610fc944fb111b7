"""Redis adapter of `admission/ports.TokenBuckets`: one key for each tenant whose bucket is not full.

Each draw is a script, so that it is atomic; its time is Redis's own, since the gateways' clocks may differ.
"""

from __future__ import annotations

from pydantic import SecretStr

from control_plane.admission.domain.rate_limit import Draw, RateLimit
from control_plane.storage.redis import RedisLink

_PREFIX = "tidegate:rate:"

# The same as `admission/domain/rate_limit.draw`, in microseconds. KEYS: the bucket. ARGV: microseconds per
# token, burst, tokens wanted, tokens spent. A stored time further away than two bursts was written before the
# clock was set back: the `min` corrects it.
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
    """Shared token buckets in Redis; the connection is made by the first draw."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._draw_script = link.client.register_script(_DRAW)

    async def draw(self, tenant: str, limit: RateLimit, *, want: int, spent: int) -> Draw:
        """Draw tokens as `admission/ports.TokenBuckets.draw` says. Raises StoreUnavailable."""
        async with self._link.calling():
            granted, debt = await self._draw_script(keys=[_PREFIX + tenant], args=[1e6 / limit.requests_per_s, limit.burst, want, spent])
        return Draw(int(granted), float(debt) / 1e6)

    async def close(self) -> None:
        await self._link.close()


def make_redis_buckets(url: SecretStr) -> RedisTokenBuckets:
    """Make the buckets without connecting. Raises StartupError: the URL is not one of a Redis."""
    return RedisTokenBuckets(RedisLink(url))
