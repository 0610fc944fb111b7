"""Index of deliveries in the Redis of jobs; implements `jobs/ports.DeliveryIndex`.

A sorted set for each tenant has its deliveries by when they are due, a hash how many each has; `redis_jobs` keeps them in
step, in the scripts that change the records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from control_plane.jobs.domain.job import Job
from control_plane.storage.redis import RedisLink

PREFIX = "tidegate:jobs:"
DELIVERIES = PREFIX + "deliveries"
"""Hash of how many deliveries each tenant has, by the field `of:TENANT`."""
_DUE_OF = PREFIX + "due-deliveries:"
_ENDED = PREFIX + "ended-receivers"


class RedisDeliveries:
    """Index of deliveries in Redis."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link

    async def due(self, now_s: float, *, of_tenant: int) -> Mapping[str, Sequence[str]]:
        async with self._link.calling(), self._link.client.pipeline(transaction=False) as asking:
            counts: Any = await self._link.client.hgetall(DELIVERIES)
            fields = [field for field, count in counts.items() if int(count) > 0 and field.startswith("of:")]
            for field in fields:
                asking.zrangebyscore(_DUE_OF + field, "-inf", repr(now_s), start=0, num=of_tenant)
            found = await asking.execute() if fields else []
        return {field.removeprefix("of:"): ids for field, ids in zip(fields, found, strict=True) if ids}

    async def end(self, tenant: str, url: str, *, now_s: float, until_s: float) -> None:
        async with self._link.calling():
            await self._link.client.zremrangebyscore(_ENDED, "-inf", repr(now_s))
            await self._link.client.zadd(_ENDED, {_receiver(tenant, url): until_s})

    async def has_ended(self, tenant: str, url: str, *, now_s: float) -> bool:
        async with self._link.calling():
            until_s = await self._link.client.zscore(_ENDED, _receiver(tenant, url))
        return until_s is not None and until_s > now_s


def delivery_place(job: Job) -> dict[str, float]:
    """Return the sorted set of deliveries that a job is in, with its score; empty for one that has nothing to deliver."""
    return {} if job.due is None else {f"{_DUE_OF}of:{job.tenant}": job.due[1].due_s}


def _receiver(tenant: str, url: str) -> str:
    return orjson.dumps([tenant, url]).decode()
