"""Job store in Redis, for several gateways; implements `jobs/ports.JobStore`.

A hash holds the records, another their revisions. Sorted sets hold what jobs are found by, hashes the tenants' sums.
Every change is one Lua script that compares the revision first, hence atomic; which entries it moves follows from the
record before and the record after.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import orjson
from pydantic import SecretStr

from control_plane.jobs.adapters.redis_deliveries import DELIVERIES, PREFIX, RedisDeliveries, delivery_place
from control_plane.jobs.adapters.redis_job_scripts import ADD, CHANGE, WAITING
from control_plane.jobs.domain.claims import HEADS, TenantQueue, WaitingJob
from control_plane.jobs.domain.job import Job, JobState, PriceClass
from control_plane.jobs.domain.job_text import decode_job, encode_job
from control_plane.jobs.domain.sweeps import surplus
from control_plane.jobs.domain.transitions import WrongState, charged
from control_plane.jobs.ports import MOST_PLACES, Backlog, Bounds, DeliveryIndex, JobsFull, Load
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
_LATEST = 1024
_COUNTS = '"keep_at_least_until_s":0.0'
"""What a record says that counts for its tenant once it has ended (`Job.kept`): so the others need not be decoded."""


class RedisJobStore:
    """Job store in Redis; `open_redis_jobs` opens it."""

    carries_bytes = 0
    """No bytes: Redis keeps everything in memory, so bodies and results are in the spool."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._latest: dict[str, Job] = {}
        """Versions of open jobs that this process wrote last: who changes one of them need not read it again."""
        self.deliveries: DeliveryIndex = RedisDeliveries(link)
        self._add_script = link.client.register_script(ADD)
        self._change_script = link.client.register_script(CHANGE)
        self._waiting_script = link.client.register_script(WAITING)

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
            raise JobsFull(of_tenant=answer[1] != _TOTAL, load=Load(*answer[2:]))
        self._wrote(job)
        return job

    async def get(self, job_id: str) -> Job | None:
        async with self._link.calling():
            record: Any = await self._link.client.hget(_RECORDS, job_id)
        return None if record is None else decode_job(record)

    async def knows_key(self, tenant: str, idempotency_key: str) -> bool:
        async with self._link.calling():
            return bool(await self._link.client.hexists(_IDS, _key_field(tenant, idempotency_key)))

    async def replace(self, job: Job) -> bool:
        before = self._latest.pop(job.id, None)
        if before is None or before.revision != job.revision - 1:
            before = await self.get(job.id)
        return before is not None and before.revision == job.revision - 1 and (await self._change_all(((before, job),)))[0]

    async def note_charged(self, jobs: Sequence[Job]) -> None:
        await self._change_all([(job, charged(job)) for job in jobs])

    async def claim(self, ids: Sequence[str], step: Callable[[Job], Job], *, most: int) -> list[Job]:
        found: list[Job] = []
        left = deque(ids)
        while len(found) < most and left:
            page = [left.popleft() for _ in range(min(len(left), most - len(found)))]
            known = {job_id: job for job_id in page if (job := self._latest.pop(job_id, None)) is not None}
            async with self._link.calling():
                jobs = known | {job.id: job for job in await self._records(job_id for job_id in page if job_id not in known)}
            changes = []
            for job_id in page:
                with suppress(WrongState, KeyError):
                    changes.append((jobs[job_id], step(jobs[job_id])))
            for (before, new), is_done in zip(changes, await self._change_all(changes), strict=True):
                if is_done:
                    found.append(new)
                elif before.id in known:  # somebody else has changed it since, and it may be claimed in that version
                    left.append(before.id)
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

    async def surplus(self, kept: Load, *, limit: int) -> list[Job]:
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

    async def load(self, tenant: str) -> tuple[Load, Load]:
        async with self._link.calling(), self._link.client.pipeline(transaction=False) as asking:
            for name in (_OPEN, _BYTES, _ENDED):
                asking.hmget(name, [_of(tenant), _TOTAL])
            sums = await asking.execute()
        own, all_of_them = zip(*sums, strict=True)
        return Load(*(int(each or 0) for each in own)), Load(*(int(each or 0) for each in all_of_them))

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
            done = [bool(each) for each in await asking.execute()]
        for (_, after), is_done in zip(changes, done, strict=True):
            if is_done and after is not None:
                self._wrote(after)
        return done

    def _wrote(self, job: Job) -> None:
        if job.is_open:
            self._latest[job.id] = job
            if len(self._latest) > _LATEST:
                del self._latest[next(iter(self._latest))]

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
    """What has to be moved besides the record, as JSON; `redis_job_scripts` carries it out."""
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
