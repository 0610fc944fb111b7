"""`ports.OwnerLine` in the Redis that gateways share: a list that the owner takes from, bounded, and gone when nobody does."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import SecretStr

from control_plane.adapters.redis_link import RedisLink

_KEY = "tidegate:asked-of-owner"
_MOST = 1000
_GRACE_S = 1.0
_KEPT_S = 10
"""Whoever waits asks again every second."""


class RedisOwnerLine:
    """Connects when it is first used."""

    def __init__(self, link: RedisLink, *, key: str = _KEY) -> None:
        self._link = link
        self._key = key

    async def ask(self, models: Iterable[str]) -> None:
        async with self._link.calling(), self._link.client.pipeline(transaction=True) as commands:
            commands.rpush(self._key, *models)
            commands.ltrim(self._key, -_MOST, -1)
            commands.expire(self._key, _KEPT_S)
            await commands.execute()

    async def take(self, *, timeout_s: float) -> list[str]:
        async with self._link.calling(timeout_s=timeout_s + _GRACE_S):
            first = await self._link.client.blpop([self._key], timeout=timeout_s)
            rest = await self._link.client.lpop(self._key, _MOST) if first is not None else None
        found = [] if first is None else [str(first[1]), *map(str, rest or [])]
        return list(dict.fromkeys(found))

    async def close(self) -> None:
        await self._link.close()


def make_redis_owner_line(url: SecretStr, *, fleet: str = "") -> RedisOwnerLine:
    """Of the fleet of that name. Raises StartupError: the URL is not one of a Redis."""
    return RedisOwnerLine(RedisLink(url), key=f"{_KEY}:{fleet}" if fleet else _KEY)
