"""`fleet/ports.LeaderChannel` in the Redis that gateways share: a bounded list as a queue, which expires if no
leader reads it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import orjson
from pydantic import SecretStr, TypeAdapter, ValidationError

from control_plane.fleet.domain.leadership.report import LoadReport
from control_plane.storage.redis import RedisLink

_log = logging.getLogger(__name__)

_KEY = "tidegate:fleet-reports"
_MAX_REPORTS = 1000
"""Reports that the list keeps; the oldest are dropped, since each process soon sends another."""
_MAX_REPORT_BYTES = 4 * 2**20
"""Upper bound of one report's size; a report on 10,000 models in use takes some 400 KB."""
_MAX_NUMBER = 10**6
"""Upper bound of each number in a report; with a larger one it is taken for forged or damaged."""
_GRACE_S = 1.0
"""Time that the blocking pop may take beyond its own timeout."""
_KEPT_S = 10
"""Expiry of the list: a process that still waits asks again several times a second."""

_REPORT = TypeAdapter(LoadReport)


class RedisLeaderChannel:
    """Redis-backed line to the leader; it connects when it is first used."""

    def __init__(self, link: RedisLink, *, key: str = _KEY) -> None:
        self._link = link
        self._key = key

    async def report(self, report: LoadReport) -> None:
        async with self._link.calling(), self._link.client.pipeline(transaction=True) as commands:
            commands.rpush(self._key, orjson.dumps(report).decode())
            # Bounded: without a leader to read it, the list would grow until it expires.
            commands.ltrim(self._key, -_MAX_REPORTS, -1)
            commands.expire(self._key, _KEPT_S)
            await commands.execute()

    async def receive(self, *, timeout_s: float) -> list[LoadReport]:
        async with self._link.calling(timeout_s=timeout_s + _GRACE_S):
            # The blocking pop returns one element; the others that have come meanwhile are taken at once.
            first = await self._link.client.blpop([self._key], timeout=timeout_s)
            rest = await self._link.client.lpop(self._key, _MAX_REPORTS) if first is not None else None
        found = [] if first is None else [str(first[1]), *map(str, rest or [])]
        return [report for text in found if (report := _read(text)) is not None]

    async def close(self) -> None:
        await self._link.close()


def make_redis_leader_channel(url: SecretStr, *, fleet: str = "") -> RedisLeaderChannel:
    """Return the line to the leader of the fleet of this name. Raises StartupError: the URL is not that of a
    Redis."""
    return RedisLeaderChannel(RedisLink(url), key=f"{_KEY}:{fleet}" if fleet else _KEY)


def _read(text: str) -> LoadReport | None:
    """Parse a report; None if it is not one, since others than gateways may write to this Redis."""
    try:
        report = _REPORT.validate_json(text, strict=True) if len(text) <= _MAX_REPORT_BYTES else None
    except ValidationError:
        report = None
    if report is None or not all(0 <= number <= _MAX_NUMBER for number in _numbers(report)):
        _log.warning("an entry of the fleet's queue in Redis is not a report of a gateway's and is ignored: %.100r", text)
        return None
    return report


def _numbers(report: LoadReport) -> Iterable[float]:
    yield from report.uses.values()
    yield from report.services.values()
    yield from (wanted.ready for wanted in report.wanted)
    for uses in report.replicas.values():
        for use in uses.values():
            yield use.in_flight
            yield use.sequences
