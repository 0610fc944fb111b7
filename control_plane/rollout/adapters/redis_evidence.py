"""`rollout/ports.EvidenceBoard` in the Redis that gateways share: for each rollout a hash of sums by process, and a
set of the units that count already.

Each process changes its own field only, and writes it whole: a write that comes twice does no harm. Both keys expire a
day after the last exchange; the ids of rollouts are unique, so one of before is never added to another.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from math import isfinite
from typing import Any

import orjson
from pydantic import SecretStr

from control_plane.rollout.domain.findings import DISAGREEMENT, GATES, Sums
from control_plane.rollout.domain.gate import ODDS_RATIOS, GateSums
from control_plane.rollout.domain.strata import STRATA
from control_plane.storage.redis import RedisLink

_log = logging.getLogger(__name__)

MAX_PROCESSES = 200
"""Processes of a rollout whose sums are kept, those that have ended included: about 1 KB each for one tenant, and
9 KB for many."""
_KEPT_S = 86_400
_KEY = "tidegate:rollout"
_NUMBERS = frozenset(map(str, range(STRATA)))

# ARGV: process, its sums ('' for none), MAX_PROCESSES, seconds to keep. Returns all fields and values.
_EXCHANGE = """
local is_new = redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0
if ARGV[2] ~= '' and not (is_new and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3])) then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
redis.call('EXPIRE', KEYS[1], ARGV[4])
return redis.call('HGETALL', KEYS[1])
"""


class RedisEvidenceBoard:
    """Redis-backed store of evidence; it connects when it is first used."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._exchange = link.client.register_script(_EXCHANGE)
        self._unreadable: frozenset[str] = frozenset()

    async def claim(self, rollout: str, units: Collection[int]) -> tuple[frozenset[int], int]:
        ordered = list(units)
        members = [unit.to_bytes(8, "big") for unit in ordered]
        key = f"{_KEY}:{rollout}:units"
        # One transaction: nobody claims one of them between the look and the claim.
        async with self._link.calling(), self._link.client.pipeline(transaction=True) as commands:
            commands.smismember(key, members)
            commands.sadd(key, *members)
            commands.scard(key)
            commands.expire(key, _KEPT_S)
            were_claimed, _, count, _ = await commands.execute()
        return frozenset(unit for unit, was in zip(ordered, were_claimed, strict=True) if not was), count

    async def exchange(self, rollout: str, process: str, own: Sums | None) -> Mapping[str, Sums]:
        body = "" if own is None else _encoded(own)
        async with self._link.calling():
            answer = await self._exchange(keys=[f"{_KEY}:{rollout}:sums"], args=[process, body, MAX_PROCESSES, _KEPT_S])
        read = {name: _decoded(text) for name, text in zip(answer[::2], answer[1::2], strict=True)}
        unreadable = frozenset(name for name, sums in read.items() if sums is None)
        if unreadable - self._unreadable:
            _log.warning("rollout %s: what %d processes have found cannot be read, and does not count", rollout, len(unreadable))
        self._unreadable = unreadable
        return {name: sums for name, sums in read.items() if sums is not None}

    async def close(self) -> None:
        await self._link.close()


def make_redis_evidence(url: SecretStr) -> RedisEvidenceBoard:
    """Return the board in this Redis. Raises StartupError: the URL is not that of a Redis."""
    return RedisEvidenceBoard(RedisLink(url))


def _encoded(sums: Sums) -> str:
    gates = {name: {str(number): _plain(each) for number, each in gate.items()} for name, gate in sums.gates.items()}
    heard = {str(number): count for number, count in sums.heard.items()}
    return orjson.dumps({"step": sums.step, "step_samples": sums.step_samples, "strata": gates, "heard": heard}).decode()


def _plain(sums: GateSums) -> list[Any]:
    return [sums.canary, sums.canary_bad, sums.stable, sums.stable_bad, sums.log_ratios]


def _decoded(text: str) -> Sums | None:
    """The sums, None where they cannot be read: another version has written them, or no tidegate at all."""
    try:
        found = orjson.loads(text)
        strata = found["strata"]
        gates = {name: _strata(strata[name]) for name in (*GATES, *(strata.keys() & {DISAGREEMENT}))}
        heard = {_number(number): _count(count) for number, count in found["heard"].items()}
        return Sums(_count(found["step"]), _count(found["step_samples"]), gates, heard)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _strata(plain: dict[str, list[Any]]) -> dict[int, GateSums]:
    return {_number(number): _gate(*each) for number, each in plain.items()}


def _number(text: str) -> int:
    if text not in _NUMBERS:
        raise ValueError("no stratum")
    return int(text)


def _gate(canary: Any, canary_bad: Any, stable: Any, stable_bad: Any, log_ratios: Any) -> GateSums:
    ratios = tuple(map(float, log_ratios))
    sums = GateSums(_count(canary), _count(canary_bad), _count(stable), _count(stable_bad), ratios)
    if len(ratios) != len(ODDS_RATIOS) or not all(map(isfinite, ratios)) or sums.canary_bad > sums.canary or sums.stable_bad > sums.stable:
        raise ValueError("no sums of a gate")
    return sums


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("no count")
    return value
