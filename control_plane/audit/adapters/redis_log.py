"""Redis adapter of `audit/ports.AuditLog`, for several gateways: a list, to whose end entries are added.

An entry's hash contains the hash of the one before it, so it is made here and added by a script only if none has
been added meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

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

# ARGV: an entry, and the count of entries before it. Returns whether it was added.
_APPEND = """
if redis.call('LLEN', KEYS[1]) ~= tonumber(ARGV[2]) then return 0 end
redis.call('RPUSH', KEYS[1], ARGV[1])
return 1
"""


class RedisAuditLog:
    """Audit log in Redis; `open_redis_audit` opens it."""

    def __init__(self, link: RedisLink, *, now_s: Callable[[], float] = time.time) -> None:
        self._link = link
        self._now_s = now_s
        self._append_script = link.client.register_script(_APPEND)
        self._turn = asyncio.Lock()

    async def append(self, change: Change) -> Entry:
        # One after the other: those of one process would only make each other's tries vain.
        async with self._link.calling(timeout_s=_TURN_S), self._turn:
            for _ in range(_ATTEMPTS):
                async with self._link.calling():
                    last = await self._link.client.lindex(_ENTRIES, -1)
                    entry = sealed(from_json(last) if last else None, change, at_s=self._now_s())
                    if await self._append_script(keys=[_ENTRIES], args=[to_json(entry), entry.number - 1]):
                        return entry
        raise StoreUnavailable(f"{self._link.place}: others append to the audit log without a pause; try again")

    async def page(self, after: int, *, limit: int) -> list[Entry]:
        async with self._link.calling():
            found = await self._link.client.lrange(_ENTRIES, after, after + limit - 1)
        return [from_json(text) for text in found]

    async def newest(self) -> int:
        async with self._link.calling():
            return int(await self._link.client.llen(_ENTRIES))

    async def close(self) -> None:
        await self._link.close()


async def open_redis_audit(url: SecretStr) -> RedisAuditLog:
    """Connect, and bring the layout up to date. Raises StartupError, StoreUnavailable."""
    return RedisAuditLog(await open_link(url, layout=_LAYOUT, migrations=_MIGRATIONS))
