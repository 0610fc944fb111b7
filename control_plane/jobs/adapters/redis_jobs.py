"""Job store in Redis, for several gateways; implements `jobs/ports.JobStore`.

A hash holds the records, another their revisions. Sorted sets hold what jobs are found by, hashes the tenants' sums.
Every change is one Lua script that compares the revision first, hence atomic; which entries it moves follows from the
record before and the record after.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import orjson
from pydantic import SecretStr

from control_plane.jobs.adapters.redis_deliveries import DELIVERIES, PREFIX, RedisDeliveries, delivery_place
from control_plane.jobs.domain.claims import HEADS, TenantQueue, WaitingJob
from control_plane.jobs.domain.job import Job, JobState, PriceClass
from control_plane.jobs.domain.job_text import decode_job, encode_job
from control_plane.jobs.domain.sweeps import surplus
from control_plane.jobs.domain.transitions import WrongState, charged
from control_plane.jobs.ports import MOST_PLACES, Backlog, Bounds, DeliveryIndex, JobsFull, JobTotals
from control_plane.storage.redis import RedisLink, open_link

_LAYOUT = PREFIX + "layout"
_MIGRATIONS = (
    "",  # nothing to do for the first layout: the first write creates it
    # The second counts what each tenant keeps of its ended jobs, anew: a Redis that was emptied beside gateways has lost the
    # number of its layout, and not what they have counted since.
    """
redis.call('DEL', 'tidegate:jobs:kept', 'tidegate:jobs:kept-bytes')
local records = redis.call('HGETALL', 'tidegate:jobs:records')
for i = 2, #records, 2 do
  local job = cjson.decode(records[i])
  if job.state ~= 'queued' and job.state ~= 'running' and (job.keep_at_least_until_s or 0) == 0 then
    local size = type(job.result) == 'table' and job.result.blob.size_bytes or 0
    if job.state == 'dead' then size = size + job.body.size_bytes end
    for _, field in ipairs({'of:' .. job.tenant, 'all'}) do
      redis.call('HINCRBY', 'tidegate:jobs:kept', field, 1)
      redis.call('HINCRBY', 'tidegate:jobs:kept-bytes', field, size)
    end
  end
end
""",
)
_RECORDS, _REVISIONS, _IDS = PREFIX + "records", PREFIX + "revisions", PREFIX + "idempotency-keys"
_LOOK, _READY, _ALL = PREFIX + "look", PREFIX + "ready", PREFIX + "all"
_OPEN, _BYTES, _ENDED, _RUNNING, _CLAIMED = (PREFIX + name for name in ("open", "bytes", "ended", "running", "claimed"))
_KEPT, _KEPT_BYTES = PREFIX + "kept", PREFIX + "kept-bytes"
_TOTAL = "all"
_PAGE = 200
_COUNTS = '"keep_at_least_until_s":0.0'
"""What a record says that counts for its tenant once it has ended (`Job.kept`): so the others need not be decoded."""

# A plan: sorted sets to leave, sorted sets to enter with a score, hashes to add to.
_COMMON = """
local function carry_out(plan, id)
  for _, key in ipairs(plan.leave) do redis.call('ZREM', key, id) end
  for _, each in ipairs(plan.enter) do redis.call('ZADD', each[1], each[2], id) end
  for _, each in ipairs(plan.add) do
    if redis.call('HINCRBY', each[1], each[2], each[3]) == 0 then redis.call('HDEL', each[1], each[2]) end
  end
  for _, each in ipairs(plan.set) do redis.call('HSET', each[1], each[2], each[3]) end
end
"""

# KEYS: records, revisions, idempotency keys, open, bytes, ended. ARGV: id, revision, record, plan, the field of the
# idempotency key or '', size, then field, jobs and bytes of each bound. Returns the record that the idempotency key
# has made before, or which bound is full with its load, or nothing.
_ADD = (
    _COMMON
    + """
if ARGV[5] ~= '' then
  local known = redis.call('HGET', KEYS[3], ARGV[5])
  local record = known and redis.call('HGET', KEYS[1], known)
  if record then return {'known', record} end
end
for i = 7, #ARGV, 3 do
  local jobs = tonumber(redis.call('HGET', KEYS[4], ARGV[i]) or '0')
  local bytes = tonumber(redis.call('HGET', KEYS[5], ARGV[i]) or '0')
  if jobs + 1 > tonumber(ARGV[i + 1]) or bytes + tonumber(ARGV[6]) > tonumber(ARGV[i + 2]) then
    return {'full', ARGV[i], jobs, bytes, tonumber(redis.call('HGET', KEYS[6], ARGV[i]) or '0')}
  end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
if ARGV[5] ~= '' then redis.call('HSET', KEYS[3], ARGV[5], ARGV[1]) end
carry_out(cjson.decode(ARGV[4]), ARGV[1])
return {'added'}
"""
)

# KEYS: records, revisions, idempotency keys. ARGV: id, expected revision, new revision, record ('': remove it), plan,
# the field of its idempotency key or ''. Returns 1, or 0 where the revision is another.
_CHANGE = (
    _COMMON
    + """
if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then return 0 end
if ARGV[4] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
  if ARGV[6] ~= '' then redis.call('HDEL', KEYS[3], ARGV[6]) end
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[4])
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
end
carry_out(cjson.decode(ARGV[5]), ARGV[1])
return 1
"""
)

# KEYS: records, ready, open, running, claimed. ARGV: prefix of the tenants' sets, now, jobs per tenant. Returns for each
# tenant with jobs that may be claimed now: its field, how many run, when it last claimed, and the first records.
_WAITING = """
local answer = {}
for _, field in ipairs(redis.call('HKEYS', KEYS[3])) do
  local found, at, set = {}, 0, ARGV[1] .. field
  while #found < tonumber(ARGV[3]) do
    local page = redis.call('ZRANGE', set, at, at + 31)
    if #page == 0 then break end
    for _, id in ipairs(page) do
      local ready = redis.call('ZSCORE', KEYS[2], id)
      if ready and tonumber(ready) <= tonumber(ARGV[2]) and #found < tonumber(ARGV[3]) then
        found[#found + 1] = redis.call('HGET', KEYS[1], id)
      end
    end
    at = at + 32
  end
  if #found > 0 then
    answer[#answer + 1] = {field, redis.call('HGET', KEYS[4], field) or '0', redis.call('HGET', KEYS[5], field) or '0', found}
  end
end
return answer
"""


class RedisJobStore:
    """Job store in Redis; `open_redis_jobs` opens it."""

    carries_bytes = 0
    """No bytes: Redis keeps everything in memory, so bodies and results are in the spool."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self.deliveries: DeliveryIndex = RedisDeliveries(link)
        self._add_script = link.client.register_script(_ADD)
        self._change_script = link.client.register_script(_CHANGE)
        self._waiting_script = link.client.register_script(_WAITING)

    async def add(self, job: Job, bounds: Bounds) -> Job:
        own, all_of_them = bounds.of_tenant, bounds.in_all
        limits = (_of(job.tenant), own.jobs, own.size_bytes, _TOTAL, all_of_them.jobs, all_of_them.size_bytes)
        record = encode_job(job).decode()
        args: list[Any] = [
            job.id,
            job.revision,
            record,
            _plan(None, job),
            _key_field(job.tenant, job.idempotency_key),
            job.body.size_bytes,
            *limits,
        ]
        async with self._link.calling():
            answer = await self._add_script(keys=[_RECORDS, _REVISIONS, _IDS, _OPEN, _BYTES, _ENDED], args=args)
        if answer[0] == "known":
            return decode_job(answer[1])
        if answer[0] == "full":
            raise JobsFull(of_tenant=answer[1] != _TOTAL, load=JobTotals(*answer[2:]))
        return job

    async def get(self, job_id: str) -> Job | None:
        async with self._link.calling():
            record: Any = await self._link.client.hget(_RECORDS, job_id)
        return None if record is None else decode_job(record)

    async def knows_key(self, tenant: str, idempotency_key: str) -> bool:
        async with self._link.calling():
            return bool(await self._link.client.hexists(_IDS, _key_field(tenant, idempotency_key)))

    async def replace(self, job: Job) -> bool:
        before = await self.get(job.id)
        return before is not None and before.revision == job.revision - 1 and (await self._change_all(((before, job),)))[0]

    async def note_charged(self, jobs: Sequence[Job]) -> None:
        await self._change_all([(job, charged(job)) for job in jobs])

    async def claim(self, ids: Sequence[str], step: Callable[[Job], Job], *, most: int) -> list[Job]:
        found: list[Job] = []
        at = 0
        while len(found) < most and (page := ids[at : at + most - len(found)]):
            at += len(page)
            changes = []
            async with self._link.calling():
                jobs = await self._records(page)
            for job in jobs:
                with suppress(WrongState):
                    changes.append((job, step(job)))
            done = await self._change_all(changes)
            found += [new for (_, new), is_done in zip(changes, done, strict=True) if is_done]
        return found

    async def remove(self, job: Job) -> bool:
        return (await self._change_all(((job, None),)))[0]

    async def waiting(self, now_s: float, *, heads: int = HEADS) -> list[TenantQueue]:
        keys = [_RECORDS, _READY, _OPEN, _RUNNING, _CLAIMED]
        async with self._link.calling():
            found = await self._waiting_script(keys=keys, args=[PREFIX + "waiting:", repr(now_s), heads])
        return [_queue(*each) for each in found]

    async def ready(self, now_s: float, *, limit: int) -> int:
        async with self._link.calling():
            return min(limit, int(await self._link.client.zcount(_READY, "-inf", repr(now_s))))

    async def neglected(self, now_s: float, *, limit: int) -> list[Job]:
        async with self._link.calling():
            ids = await self._link.client.zrangebyscore(_LOOK, "-inf", repr(now_s), start=0, num=limit)
            return await self._records(ids)

    async def surplus(self, kept: JobTotals, *, limit: int) -> list[Job]:
        found: list[Job] = []
        async with self._link.calling():
            counts: Any = await self._link.client.hgetall(_KEPT)
            sizes: Any = await self._link.client.hgetall(_KEPT_BYTES)
        for field in counts:
            over = int(counts[field]) - kept.jobs, int(sizes.get(field, 0)) - kept.size_bytes
            if field != _TOTAL and max(over) > 0:
                found += await self._oldest(field.removeprefix("of:"), *over, limit=limit)
        return found

    async def place(self, job: Job) -> int:
        async with self._link.calling():
            rank: Any = await self._link.client.zrank(_waiting_of(job.tenant), job.id)
        return min(rank or 0, MOST_PLACES)

    async def jobs_of(self, tenant: str | None, *, state: JobState | None, before: str, limit: int) -> list[Job]:
        key = await self._smaller([f"{PREFIX}of:{tenant}"] * (tenant is not None) + [f"{PREFIX}in:{state}"] * (state is not None))
        found, at, newest = list[Job](), 0, math.inf
        if before:
            async with self._link.calling():
                place: Any = await self._link.client.zscore(_ALL, before)
            if place is None:
                return []
            newest = place
        while len(found) < limit:
            async with self._link.calling():  # of its own: all pages of 100,000 jobs take longer than a call may
                # By time and id, not by rank: this set may not have the job any more, as its state has changed.
                page = await self._by_time(key, newest, at)
                jobs = await self._records(job_id for job_id, score in page if not before or (score, job_id) < (newest, before))
            if not page:
                break
            found += [job for job in jobs if state in (None, job.state) and tenant in (None, job.tenant)]
            at += _PAGE
        return found[:limit]

    async def _smaller(self, keys: Sequence[str]) -> str:
        """Return that of the sorted sets which has fewer jobs; without any, the one of all jobs."""
        if len(keys) < 2:
            return keys[0] if keys else _ALL
        async with self._link.calling(), self._link.client.pipeline(transaction=False) as asking:
            for key in keys:
                asking.zcard(key)
            sizes = await asking.execute()
        return min(zip(sizes, keys, strict=True))[1]

    async def _by_time(self, key: str, newest_s: float, at: int) -> list[tuple[str, float]]:
        """Return a page of ids and times of submission, the newest first."""
        page: Any = await self._link.client.zrevrangebyscore(key, newest_s, "-inf", at, _PAGE, withscores=True)
        return page  # type: ignore[no-any-return]

    async def load(self, tenant: str) -> tuple[JobTotals, JobTotals]:
        async with self._link.calling(), self._link.client.pipeline(transaction=False) as asking:
            for name in (_OPEN, _BYTES, _ENDED):
                asking.hmget(name, [_of(tenant), _TOTAL])
            sums = await asking.execute()
        own, all_of_them = zip(*sums, strict=True)
        return JobTotals(*(int(each or 0) for each in own)), JobTotals(*(int(each or 0) for each in all_of_them))

    async def backlog(self) -> Backlog:
        async with self._link.calling(), self._link.client.pipeline(transaction=False) as asking:
            asking.hget(_OPEN, _TOTAL)
            asking.hget(_RUNNING, _TOTAL)
            asking.zcard(f"{PREFIX}in:{JobState.DEAD}")
            asking.zrange(f"{PREFIX}in:{JobState.QUEUED}", 0, 0, withscores=True)
            open_, running, dead, oldest = await asking.execute()
        return Backlog(int(open_ or 0) - int(running or 0), int(running or 0), dead, oldest[0][1] if oldest else None)

    async def close(self) -> None:
        await self._link.close()

    async def _change_all(self, changes: Sequence[tuple[Job, Job | None]]) -> list[bool]:
        """Change records in one trip; True for each whose version before is still the present one."""
        if not changes:
            return []
        async with self._link.calling(), self._link.client.pipeline(transaction=False) as asking:
            for before, after in changes:
                await self._change_script(keys=[_RECORDS, _REVISIONS, _IDS], args=_change_args(before, after), client=asking)
            return [bool(each) for each in await asking.execute()]

    async def _oldest(self, tenant: str, jobs: int, size_bytes: int, *, limit: int) -> list[Job]:
        """The oldest ended jobs of a tenant that has so many, or so many bytes, too many."""
        key, at, found = f"{PREFIX}of:{tenant}", 0, list[Job]()
        while (jobs > 0 or size_bytes > 0) and len(found) < limit:
            async with self._link.calling():  # of its own: parts of batches may come before, which do not count, by the thousand
                ids = await self._link.client.zrange(key, at, at + _PAGE - 1)
                counting = [record for record in await self._texts(ids) if _COUNTS in record]
            if not ids:
                break
            page = surplus(map(decode_job, counting), jobs=jobs, size_bytes=size_bytes, limit=limit - len(found))
            found += page
            jobs, size_bytes = jobs - len(page), size_bytes - sum(job.kept[1] for job in page)
            at += _PAGE
        return found

    async def _records(self, ids: Iterable[Any]) -> list[Job]:
        return [decode_job(record) for record in await self._texts(ids)]

    async def _texts(self, ids: Iterable[Any]) -> list[str]:
        wanted = list(ids)
        if not wanted:
            return []
        records: Any = await self._link.client.hmget(_RECORDS, wanted)
        return [record for record in records if record is not None]


async def open_redis_jobs(url: SecretStr) -> RedisJobStore:
    """Connect, and bring the layout up to date. Raises StartupError, StoreUnavailable."""
    return RedisJobStore(await open_link(url, layout=_LAYOUT, migrations=_MIGRATIONS))


def _change_args(before: Job, after: Job | None) -> list[Any]:
    record, revision = ("", 0) if after is None else (encode_job(after).decode(), after.revision)
    key = _key_field(before.tenant, before.idempotency_key)
    return [before.id, before.revision, revision, record, _plan(before, after), key]


def _of(tenant: str) -> str:
    """The field of a tenant's sums: never the one of the total."""
    return f"of:{tenant}"


def _waiting_of(tenant: str) -> str:
    return f"{PREFIX}waiting:{_of(tenant)}"


def _key_field(tenant: str, idempotency_key: str) -> str:
    return orjson.dumps([tenant, idempotency_key]).decode() if idempotency_key else ""


def _places(job: Job | None) -> dict[str, str]:
    """The sorted sets that a job is in, and its score in each."""
    if job is None:
        return {}
    places = {
        _ALL: job.submitted_s,
        f"{PREFIX}of:{job.tenant}": job.submitted_s,
        f"{PREFIX}in:{job.state}": job.submitted_s,
        _LOOK: job.look_at_s,
        **delivery_place(job),
    }
    if job.state is JobState.QUEUED:
        places |= {_READY: job.ready_s, _waiting_of(job.tenant): job.due_s}
    return {key: repr(float(score)) for key, score in places.items()}


def _plan(before: Job | None, after: Job | None) -> str:
    """What has to be moved besides the record, as JSON; `_COMMON` carries it out."""
    present, wanted = _places(before), _places(after)
    job = after or before
    assert job is not None
    was_open, is_open = (each is not None and each.is_open for each in (before, after))
    was_running, is_running = (each is not None and each.state is JobState.RUNNING for each in (before, after))
    opened, started = int(is_open) - int(was_open), int(is_running) - int(was_running)
    sums = [(_OPEN, opened), (_BYTES, opened * job.body.size_bytes), (_ENDED, max(0, -opened)), (_RUNNING, started)]
    (kept, kept_bytes), (were_kept, were_kept_bytes) = (each.kept if each is not None else (0, 0) for each in (after, before))
    sums += [(_KEPT, kept - were_kept), (_KEPT_BYTES, kept_bytes - were_kept_bytes)]
    is_told, was_told = (each is not None and bool(delivery_place(each)) for each in (after, before))
    sums += [(DELIVERIES, int(is_told) - int(was_told))]
    claims = after is not None and before is not None and after.fence != before.fence
    return orjson.dumps(
        {
            "leave": [key for key in present if key not in wanted],
            "enter": [(key, score) for key, score in wanted.items() if present.get(key) != score],
            "add": [(name, field, amount) for name, amount in sums if amount for field in (_of(job.tenant), _TOTAL)],
            "set": [(_CLAIMED, _of(job.tenant), repr(job.started_s))] if claims else [],
        }
    ).decode()


def _queue(field: str, running: str, last_claimed_s: str, records: list[str]) -> TenantQueue:
    # Not `decode_job`, which takes three times as long: there may be thousands for each claim.
    jobs = tuple(WaitingJob(job["id"], job["model"], job["due_s"], PriceClass(job["price_class"])) for job in map(orjson.loads, records))
    return TenantQueue(field.removeprefix("of:"), int(running), float(last_claimed_s), jobs)
