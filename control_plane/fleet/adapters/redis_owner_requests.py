"""`fleet/ports.OwnerLine` in the Redis that gateways share: a list that the owner takes from, bounded, and gone when nobody does."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import orjson
from pydantic import SecretStr, TypeAdapter, ValidationError

from control_plane.fleet.domain.report import FleetReport
from control_plane.storage.redis import RedisLink

_log = logging.getLogger(__name__)

_KEY = "tidegate:fleet-reports"
_MOST = 1000
_MOST_BYTES = 4 * 2**20
"""Of one report; 10,000 models in use take some 400 KB."""
_MOST_OF_ANYTHING = 10**6
_GRACE_S = 1.0
_KEPT_S = 10
"""Whoever waits asks again several times a second."""

_REPORT = TypeAdapter(FleetReport)


class RedisOwnerLine:
    """Connects when it is first used."""

    def __init__(self, link: RedisLink, *, key: str = _KEY) -> None:
        self._link = link
        self._key = key

    async def report(self, report: FleetReport) -> None:
        async with self._link.calling(), self._link.client.pipeline(transaction=True) as commands:
            commands.rpush(self._key, orjson.dumps(report).decode())
            commands.ltrim(self._key, -_MOST, -1)
            commands.expire(self._key, _KEPT_S)
            await commands.execute()

    async def take(self, *, timeout_s: float) -> list[FleetReport]:
        async with self._link.calling(timeout_s=timeout_s + _GRACE_S):
            first = await self._link.client.blpop([self._key], timeout=timeout_s)
            rest = await self._link.client.lpop(self._key, _MOST) if first is not None else None
        found = [] if first is None else [str(first[1]), *map(str, rest or [])]
        return [report for text in found if (report := _read(text)) is not None]

    async def close(self) -> None:
        await self._link.close()


def make_redis_owner_line(url: SecretStr, *, fleet: str = "") -> RedisOwnerLine:
    """Of the fleet of that name. Raises StartupError: the URL is not one of a Redis."""
    return RedisOwnerLine(RedisLink(url), key=f"{_KEY}:{fleet}" if fleet else _KEY)


def _read(text: str) -> FleetReport | None:
    """None: it is not a report, which others than gateways may have put there."""
    try:
        report = _REPORT.validate_json(text, strict=True) if len(text) <= _MOST_BYTES else None
    except ValidationError:
        report = None
    if report is None or not all(0 <= number <= _MOST_OF_ANYTHING for number in _numbers(report)):
        _log.warning("what lies in the fleet's Redis is not a report of a gateway's and is ignored: %.100r", text)
        return None
    return report


def _numbers(report: FleetReport) -> Iterable[float]:
    yield from report.uses.values()
    yield from report.services.values()
    yield from (wanted.ready for wanted in report.wanted)
    for uses in report.copies.values():
        for use in uses.values():
            yield use.in_flight
            yield use.sequences
