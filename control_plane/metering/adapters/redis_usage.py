"""Usage store in a Redis that several gateways share; implements `metering/ports.UsageStore` with a stream
and hashes.

`add` appends a batch to a stream, once per id. All gateways read the stream as one consumer of one group. A
gateway that has read a batch adds its sums, acknowledges it and deletes it in one Lua script, and only if it
is not acknowledged yet: each batch counts once, whichever gateway dies and whichever takes over. So the
stream holds exactly what is not in the sums yet, and `totals` adds it to them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from pydantic import SecretStr
from redis.exceptions import ResponseError

from control_plane.core.errors import InvalidRequest, StoreUnavailable
from control_plane.metering.domain.usage import (
    BATCH_IDS_KEPT_S,
    KEEP_RECORDS,
    Usage,
    UsageBatch,
    UsageKey,
    UsageRecord,
    first_kept_day,
)
from control_plane.metering.domain.usage_text import decode_batch, decode_record, encode_batch, encode_records
from control_plane.storage.redis import RedisLink, open_link

_log = logging.getLogger(__name__)

_LAYOUT = "tidegate:usage:layout"
_STREAM = "tidegate:usage:events"
_DAYS = "tidegate:usage:days"
_SUMS = "tidegate:usage:sums:"
_BATCH = "tidegate:usage:batch:"
_RECORDS = "tidegate:usage:records"
_GROUP = "gateways"
_MIGRATIONS = ("",)  # the first layout is made by the first batch

_ABANDONED_S = 30.0
"""A batch that was read but not counted for this long is taken over by another gateway: counting takes
milliseconds."""
_BLOCK_S = 0.5
_READ_TIMEOUT_S = 2.0
_RETRY_S = 1.0
_BATCHES = 10
_TOTALS_TIMEOUT_S = 30.0

_AMOUNTS = tuple(field.name for field in dataclasses.fields(Usage))
_FRACTIONAL = "compute_units"

# KEYS: stream, the batch's own, records. ARGV: the batch, seconds, records that are kept, the batch's records. The id
# is stored last, since Redis does not roll back a script that fails: a batch without a stored id is sent again, one with
# an id but not on the stream would be lost. A record's id on its stream is its number, which the newest one tells.
_ADD = """
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('XADD', KEYS[1], '*', 'batch', ARGV[1])
  local last = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
  local number = last and tonumber(string.match(last[1], '^%d+')) or 0
  for i = 4, #ARGV do
    redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[3], string.format('%d-0', number + i - 3), 'record', ARGV[i])
  end
  redis.call('SET', KEYS[2], '', 'EX', ARGV[2])
end
"""

# KEYS: days, stream. ARGV: prefix of sums, group, the batch's id on the stream; then for each sum day, field,
# command, amount. pcall: a sum that would overflow 64 bits fails alone, without the others.
_COUNT = """
if redis.call('XACK', KEYS[2], ARGV[2], ARGV[3]) == 1 then
  redis.call('XDEL', KEYS[2], ARGV[3])
  for i = 4, #ARGV, 4 do
    redis.call('ZADD', KEYS[1], 0, ARGV[i])
    redis.pcall(ARGV[i + 2], ARGV[1] .. ARGV[i], ARGV[i + 1], ARGV[i + 3])
  end
end
"""

# KEYS: days, stream. ARGV: prefix of sums. The group is deleted with the stream, so a gateway that has read a
# batch before the restore can no longer count it.
_CLEAR = """
for _, day in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('DEL', ARGV[1] .. day) end
redis.call('DEL', KEYS[1], KEYS[2])
"""

# KEYS: days. ARGV: prefix of sums, first day that is kept.
_FORGET = """
for _, day in ipairs(redis.call('ZRANGE', KEYS[1], '-', '(' .. ARGV[2], 'BYLEX')) do
  redis.call('UNLINK', ARGV[1] .. day)
  redis.call('ZREM', KEYS[1], day)
end
"""

# KEYS: days, stream. ARGV: prefix of sums, first day, last day. Returns the days' sums and what is on the
# stream, in one script, so that no batch is in both or in neither.
_TOTALS = """
local sums = {}
for i, day in ipairs(redis.call('ZRANGE', KEYS[1], '[' .. ARGV[2], '[' .. ARGV[3], 'BYLEX')) do
  sums[i] = {day, redis.call('HGETALL', ARGV[1] .. day)}
end
return {sums, redis.call('XRANGE', KEYS[2], '-', '+')}
"""


class RedisUsageStore:
    """Usage store in Redis; made by `open_redis_usage`."""

    def __init__(
        self, link: RedisLink, *, abandoned_s: float = _ABANDONED_S, keep_days: int | None = None, keep_records: int = KEEP_RECORDS
    ) -> None:
        self._link = link
        self._keep_records = keep_records
        self._keep_days = keep_days
        self._abandoned_s = abandoned_s
        self._add_script = link.client.register_script(_ADD)
        self._count_script = link.client.register_script(_COUNT)
        self._totals_script = link.client.register_script(_TOTALS)
        self._forget_script = link.client.register_script(_FORGET)

    async def add(self, batch: UsageBatch) -> None:
        async with self._link.calling():
            await self._add_script(**self._added(batch))

    async def add_all(self, batches: Sequence[UsageBatch]) -> None:
        async with self._link.calling(), self._link.client.pipeline(transaction=False) as step:
            for batch in batches:
                await self._add_script(**self._added(batch), client=step)
            await step.execute()

    async def recorded(self, after: int, *, limit: int) -> list[UsageRecord]:
        async with self._link.calling(timeout_s=_READ_TIMEOUT_S):
            found: Any = await self._link.client.xrange(_RECORDS, min=f"({after}-0", count=limit)
        return [decode_record(_number_of(place), fields["record"]) for place, fields in found]

    async def newest_record(self) -> int:
        async with self._link.calling():
            found: Any = await self._link.client.xrevrange(_RECORDS, count=1)
        return _number_of(found[0][0]) if found else 0

    async def totals(self, *, since_day: str, until_day: str) -> list[tuple[UsageKey, Usage]]:
        async with self._link.calling(timeout_s=_TOTALS_TIMEOUT_S):
            days, waiting = await self._totals_script(keys=[_DAYS, _STREAM], args=[_SUMS, since_day, until_day])
        # In a thread, as quotas ask every few seconds: a field takes a microsecond, and 10,000 sums of a day have 70,000.
        return await asyncio.to_thread(_totals, days, waiting, since_day=since_day, until_day=until_day)

    async def restore(self, totals: Iterable[tuple[UsageKey, Usage]]) -> None:
        async with self._link.calling(timeout_s=_TOTALS_TIMEOUT_S), self._link.client.pipeline(transaction=True) as step:
            step.eval(_CLEAR, 2, _DAYS, _STREAM, _SUMS)
            for key, usage in totals:
                step.zadd(_DAYS, {key.day: 0})
                step.hset(_SUMS + key.day, mapping=_fields(key, usage))
            await step.execute()

    async def run(self) -> None:
        """Read batches from the stream and count them, through outages, until cancelled."""
        while True:
            try:
                await self._make_group()
                await self._count_for_ever()
            except StoreUnavailable as exc:
                _log.warning("usage is not summed for now; it waits on the stream: %s", exc)
                await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        await self._link.close()

    def _added(self, batch: UsageBatch) -> dict[str, Any]:
        """Return the keys and arguments of the script `_ADD`."""
        records = encode_records(batch, at_s=time.time())
        args = [encode_batch(batch), BATCH_IDS_KEPT_S, self._keep_records, *records]
        return {"keys": [_STREAM, _BATCH + batch.id, _RECORDS], "args": args}

    async def _make_group(self) -> None:
        async with self._link.calling():
            try:
                await self._link.client.xgroup_create(_STREAM, _GROUP, id="0", mkstream=True)
            except ResponseError as exc:
                if not str(exc).startswith("BUSYGROUP"):  # the group exists
                    raise

    async def _count_for_ever(self) -> None:
        now_s = asyncio.get_running_loop().time
        look_back_s = now_s()
        while True:
            taken = await self._take()
            if now_s() >= look_back_s:
                await self._forget()
                taken += await self._take_abandoned()
                look_back_s = now_s() + self._abandoned_s / 2
            for place, fields in taken:
                await self._count(place, fields)

    async def _take(self) -> list[tuple[str, dict[str, str]]]:
        async with self._link.calling(timeout_s=_READ_TIMEOUT_S):
            found: Any = await self._link.client.xreadgroup(_GROUP, _GROUP, {_STREAM: ">"}, count=_BATCHES, block=int(_BLOCK_S * 1000))
        return [entry for _, entries in found for entry in entries]

    async def _take_abandoned(self) -> list[tuple[str, dict[str, str]]]:
        async with self._link.calling():
            answer = await self._link.client.xautoclaim(_STREAM, _GROUP, _GROUP, int(self._abandoned_s * 1000), count=_BATCHES)
        return list(answer[1])

    async def _forget(self) -> None:
        """Remove the sums of days that are not kept."""
        if self._keep_days is not None:
            async with self._link.calling():
                await self._forget_script(keys=[_DAYS], args=[_SUMS, first_kept_day(time.time(), self._keep_days)])

    async def _count(self, place: str, fields: Mapping[str, str]) -> None:
        sums = _read_batch(place, fields)
        if sums is not None:
            async with self._link.calling():
                await self._count_script(keys=[_DAYS, _STREAM], args=[_SUMS, _GROUP, place, *_additions(sums)])


async def open_redis_usage(url: SecretStr, keep_days: int | None = None, keep_records: int = KEEP_RECORDS) -> RedisUsageStore:
    """Connect to the store, whose background work removes sums older than `keep_days`; of the records it keeps about so many
    of the newest. Raises StartupError, StoreUnavailable."""
    link = await open_link(url, layout=_LAYOUT, migrations=_MIGRATIONS)
    return RedisUsageStore(link, keep_days=keep_days, keep_records=keep_records)


def _totals(
    days: Iterable[tuple[str, list[str]]], waiting: Iterable[tuple[str, list[str]]], *, since_day: str, until_day: str
) -> list[tuple[UsageKey, Usage]]:
    """Add the batches that wait on the stream to the days' sums, as `_TOTALS` returns both."""
    totals = {key: usage for day, flat in days for key, usage in _read_sums(day, flat).items()}
    for place, flat in waiting:
        for key, usage in _read_batch(place, _pairs(flat)) or ():
            if since_day <= key.day <= until_day:
                totals[key] = totals.get(key, Usage()) + usage
    return sorted(totals.items(), key=lambda total: (total[0].day, total[0].tenant, total[0].model))


def _read_batch(place: str, fields: Mapping[str, str]) -> tuple[tuple[UsageKey, Usage], ...] | None:
    """Decode a batch; None if it cannot be decoded. It stays on the stream, for a newer gateway that can."""
    try:
        return decode_batch(fields.get("batch", "").encode()).sums
    except InvalidRequest as exc:
        _log.error("batch %s of the stream %s cannot be read, and is left there: %s", place, _STREAM, exc)
        return None


def _fields(key: UsageKey, usage: Usage) -> dict[Any, float]:
    """Return the fields of the day's hash for a sum: `<amount's name> [<tenant>,<model>]` -> amount."""
    names = orjson.dumps([key.tenant, key.model]).decode()
    return {f"{what} {names}": getattr(usage, what) for what in _AMOUNTS}


def _additions(totals: Iterable[tuple[UsageKey, Usage]]) -> Iterator[str | float]:
    """Return the sums as arguments of the script `_COUNT`."""
    for key, usage in totals:
        for field, amount in _fields(key, usage).items():
            if amount:
                yield from (key.day, field, "HINCRBYFLOAT" if field.startswith(_FRACTIONAL) else "HINCRBY", amount)


def _number_of(place: str) -> int:
    return int(place.partition("-")[0])


def _pairs(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _read_sums(day: str, flat: list[str]) -> dict[UsageKey, Usage]:
    found: dict[UsageKey, dict[str, float]] = {}
    for field, amount in _pairs(flat).items():
        what, _, names = field.partition(" ")
        if what not in _AMOUNTS:  # a newer gateway's
            continue
        tenant, model = orjson.loads(names)
        found.setdefault(UsageKey(day, tenant, model), {})[what] = float(amount) if what == _FRACTIONAL else int(amount)
    return {key: Usage(**amounts) for key, amounts in found.items()}  # type: ignore[arg-type]  # whole where they are to be
