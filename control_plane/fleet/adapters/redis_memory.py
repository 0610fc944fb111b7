"""`fleet/ports.FleetMemory` in the Redis that gateways share: two hashes by model, each with a token that every change replaces.

So who has read one before asks for its token only, and reads nothing that it has read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Generic, TypeVar
from uuid import uuid4

from pydantic import SecretStr
from redis.client import NEVER_DECODE

from control_plane.core.errors import InvalidRequest
from control_plane.fleet.adapters.memory_text import decode, encode
from control_plane.fleet.domain.memory import Measured, Wish
from control_plane.storage.redis import RedisLink

_log = logging.getLogger(__name__)

RecordT = TypeVar("RecordT", Measured, Wish)

_KEY = "tidegate:fleet-memory"
_TOKEN = ""
"""The field of the token: no model has this name."""


class RedisFleetMemory:
    """Connects when it is first used."""

    def __init__(self, link: RedisLink, *, key: str = _KEY) -> None:
        self._link = link
        self._measured = _Hash(link, f"{key}:measured", Measured)
        self._wishes = _Hash(link, f"{key}:wishes", Wish)

    async def measured(self) -> Mapping[str, Measured]:
        return await self._measured.read()

    async def measure(self, changes: Mapping[str, Measured | None]) -> None:
        await self._measured.change(changes)

    async def wishes(self) -> Mapping[str, Wish] | None:
        found = await self._wishes.read()
        return None if self._wishes.is_lost else found

    async def wish(self, changes: Mapping[str, Wish | None]) -> None:
        await self._wishes.change(changes)

    async def close(self) -> None:
        await self._link.close()


class _Hash(Generic[RecordT]):
    def __init__(self, link: RedisLink, key: str, kind: type[RecordT]) -> None:
        self._link = link
        self._key = key
        self._kind: type[RecordT] = kind
        self.is_lost = False
        """It had a token, and has none: somebody has emptied the Redis, or it came back without what it had."""
        self._token: bytes | None = None
        self._lines: dict[bytes, bytes] = {}
        self._records: Mapping[str, RecordT] = {}

    async def read(self) -> Mapping[str, RecordT]:
        """The same mapping as long as nothing has changed."""
        async with self._link.calling():
            token = await self._ask("HGET", self._key, _TOKEN)
            if token is not None and token == self._token:
                return self._records
            lines = await self._ask("HGETALL", self._key)
        had_any, self._token = self._token is not None or self.is_lost, lines.pop(_TOKEN.encode(), None)
        self.is_lost = had_any and self._token is None
        before, self._lines = self._lines, lines
        if lines != before:
            self._records = self._decoded(before)
        return self._records

    async def _ask(self, *words: str) -> Any:
        """Its answer as bytes: what is no text must not keep the rest from being read."""
        return await self._link.client.execute_command(*words, **{NEVER_DECODE: True})  # type: ignore[no-untyped-call]

    async def change(self, changes: Mapping[str, RecordT | None]) -> None:
        async with self._link.calling(), self._link.client.pipeline(transaction=True) as commands:
            for model, record in changes.items():
                if record is None:
                    commands.hdel(self._key, model)
                else:
                    commands.hset(self._key, model, encode(record))
            commands.hset(self._key, _TOKEN, uuid4().hex)
            await commands.execute()

    def _decoded(self, before: Mapping[bytes, bytes]) -> dict[str, RecordT]:
        """Only what has changed is read."""
        known, records = self._records, {}
        for name, line in self._lines.items():
            model = name.decode(errors="replace")
            if before.get(name) == line:
                if model in known:
                    records[model] = known[model]
                continue
            try:
                records[model] = decode(self._kind, model, line)
            except InvalidRequest as exc:
                _log.warning("%s", exc)
        return records


def make_redis_fleet_memory(url: SecretStr, *, fleet: str = "") -> RedisFleetMemory:
    """Of the fleet of that name. Raises StartupError: the URL is not one of a Redis."""
    return RedisFleetMemory(RedisLink(url), key=f"{_KEY}:{fleet}" if fleet else _KEY)
