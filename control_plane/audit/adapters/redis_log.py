"""Redis adapter of `audit/ports.AuditLog`, for several gateways: a list, to whose end entries are added.

An entry's hash contains the hash of the one before it, so it is made here and added by a script only if none has
been added meanwhile. Redis keeps it all in memory and accepts nothing more once that is full, so the oldest entries
are removed from a number on; the first that is there tells by its own number how many were.
"""

from __future__ import annotations

import asyncio
import time

from pydantic import SecretStr

from control_plane.audit.domain.entry import Change, Entry, from_json, sealed, to_json
from control_plane.core.errors import StoreUnavailable
from control_plane.storage.redis import RedisLink, open_link

_LAYOUT = "tidegate:audit:layout"
_ENTRIES = "tidegate:audit:entries"
_MIGRATIONS = ("",)  # nothing to do for the first layout: the first entry creates it
_ATTEMPTS = 50
"""Tries against other processes that append at the same time; of those that try at once one succeeds each time."""
_TURN_S = 5.0
"""Longest append, with the wait for those of this process that came before it."""

# ARGV: an entry, the one before it (empty: none), and how many are kept (empty: all). Returns whether it was added.
# So many are removed at once at most, as nothing else runs in Redis meanwhile.
_APPEND = """
if (redis.call('LINDEX', KEYS[1], -1) or '') ~= ARGV[2] then return 0 end
local over = redis.call('RPUSH', KEYS[1], ARGV[1]) - (tonumber(ARGV[3]) or math.huge)
if over > 0 then redis.call('LTRIM', KEYS[1], math.min(over, 1000), -1) end
return 1
"""

# ARGV: the number after which the page begins, and its length.
_PAGE = """
local first = redis.call('LINDEX', KEYS[1], 0)
if not first then return {} end
local from = math.max(0, tonumber(ARGV[1]) + 1 - cjson.decode(first).number)
return redis.call('LRANGE', KEYS[1], from, from + tonumber(ARGV[2]) - 1)
"""


class RedisAuditLog:
    """Audit log in Redis; `open_redis_audit` opens it."""

    def __init__(self, link: RedisLink, *, keep: int | None = None) -> None:
        """`keep` is how many of the newest entries stay; None: all."""
        self._link = link
        self._keep = keep
        self._append_script, self._page_script = map(link.client.register_script, (_APPEND, _PAGE))
        self._turn = asyncio.Lock()

    async def append(self, change: Change) -> Entry:
        # One after the other: those of one process would only make each other's tries vain.
        async with self._link.calling(timeout_s=_TURN_S), self._turn:
            for _ in range(_ATTEMPTS):
                async with self._link.calling():
                    last = await self._link.client.lindex(_ENTRIES, -1) or ""
                    entry = sealed(from_json(last) if last else None, change, at_s=time.time())
                    if await self._append_script(keys=[_ENTRIES], args=[to_json(entry), last, self._keep or ""]):
                        return entry
        raise StoreUnavailable(f"{self._link.place}: others append to the audit log without a pause; try again")

    async def page(self, after: int, *, limit: int) -> list[Entry]:
        async with self._link.calling():
            found = await self._page_script(keys=[_ENTRIES], args=[after, limit])
        return [from_json(text) for text in found]

    async def newest(self) -> int:
        async with self._link.calling():
            last = await self._link.client.lindex(_ENTRIES, -1)
        return from_json(last).number if last else 0

    async def close(self) -> None:
        await self._link.close()


async def open_redis_audit(url: SecretStr, *, keep: int | None = None) -> RedisAuditLog:
    """Connect, and bring the layout up to date. Raises StartupError, StoreUnavailable."""
    return RedisAuditLog(await open_link(url, layout=_LAYOUT, migrations=_MIGRATIONS), keep=keep)
