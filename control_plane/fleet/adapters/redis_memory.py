"""`fleet/ports.FleetMemory` in the Redis that gateways share: two hashes by model, each with a version token
that every change replaces.

A process that has read a hash before reads its token only, and the whole hash again only if that has changed.
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
from control_plane.fleet.domain.memory import DesiredState, Measured
from control_plane.storage.redis import RedisLink

_log = logging.getLogger(__name__)

RecordT = TypeVar("RecordT", Measured, DesiredState)

_KEY = "tidegate:fleet-memory"
_TOKEN = ""
"""The field of the version token; no model has an empty name."""


class RedisFleetMemory:
    """Redis-backed store of measurements and desired states; it connects when it is first used."""

    def __init__(self, link: RedisLink, *, key: str = _KEY) -> None:
        self._link = link
        self._measured = _Hash(link, f"{key}:measured", Measured)
        self._wishes = _Hash(link, f"{key}:wishes", DesiredState)

    async def measured(self) -> Mapping[str, Measured]:
        return await self._measured.read()

    async def measure(self, changes: Mapping[str, Measured | None]) -> None:
        await self._measured.change(changes)

    async def wishes(self) -> Mapping[str, DesiredState] | None:
        found = await self._wishes.read()
        return None if self._wishes.is_lost else found

    async def wish(self, changes: Mapping[str, DesiredState | None]) -> None:
        await self._wishes.change(changes)

    async def close(self) -> None:
        await self._link.close()


class _Hash(Generic[RecordT]):
    """Cached Redis hash of records by model, validated by its version token."""

    def __init__(self, link: RedisLink, key: str, kind: type[RecordT]) -> None:
        self._link = link
        self._key = key
        self._kind: type[RecordT] = kind
        self.is_lost = False
        """The hash had a token and has none now: somebody emptied the Redis, or it restarted without its
        data."""
        self._token: bytes | None = None
        self._lines: dict[bytes, bytes] = {}
        self._records: Mapping[str, RecordT] = {}

    async def read(self) -> Mapping[str, RecordT]:
        """Return the records by model: the same mapping object as long as nothing has changed."""
        async with self._link.calling():
            token = await self._ask("HGET", self._key, _TOKEN)
            if token is not None and token == self._token:
                return self._records
            lines = await self._ask("HGETALL", self._key)
        # Known to have existed, but without a token now: the hash was lost, which an empty one alone would
        # not show.
        had_any, self._token = self._token is not None or self.is_lost, lines.pop(_TOKEN.encode(), None)
        self.is_lost = had_any and self._token is None
        before, self._lines = self._lines, lines
        if lines != before:
            self._records = self._decoded(before)
        return self._records

    async def _ask(self, *words: str) -> Any:
        """Run a command and return bytes: one record that is no UTF-8 must not keep the others from being
        read."""
        return await self._link.client.execute_command(*words, **{NEVER_DECODE: True})  # type: ignore[no-untyped-call]

    async def change(self, changes: Mapping[str, RecordT | None]) -> None:
        """Write or delete records, and replace the token, in one transaction."""
        async with self._link.calling(), self._link.client.pipeline(transaction=True) as commands:
            for model, record in changes.items():
                if record is None:
                    commands.hdel(self._key, model)
                else:
                    commands.hset(self._key, model, encode(record))
            # In the same transaction: a reader that sees the new token sees the new records.
            commands.hset(self._key, _TOKEN, uuid4().hex)
            await commands.execute()

    def _decoded(self, before: Mapping[bytes, bytes]) -> dict[str, RecordT]:
        """Decode the lines that have changed, and keep the records of the others."""
        known, records = self._records, {}
        for name, line in self._lines.items():
            model = name.decode(errors="replace")
            # There may be thousands of records, and few of them change between two reads.
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
    """Return the memory of the fleet of this name. Raises StartupError: the URL is not that of a Redis."""
    return RedisFleetMemory(RedisLink(url), key=f"{_KEY}:{fleet}" if fleet else _KEY)
