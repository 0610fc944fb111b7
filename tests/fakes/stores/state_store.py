from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from control_plane.core.errors import ObjectNotFound, StoreUnavailable
from control_plane.objects.domain.stored import Kind, Stored, check_expected, check_not_older


@dataclass
class FakeState:
    """The stored objects; several `FakeStateStore`s may share one."""

    objects: dict[tuple[Kind, str], Stored] = field(default_factory=dict)
    last: int = 0
    waiting: set[asyncio.Event] = field(default_factory=set)

    def write(self, kind: Kind, name: str, body: Mapping[str, Any] | None) -> Stored:
        self.last += 1
        self.objects[kind, name] = Stored(kind, name, self.last, body)
        for change in self.waiting:
            change.set()
        return self.objects[kind, name]


@dataclass
class FakeStateStore:
    """In-memory `objects/ports.StateStore`; while it `is_away` every call raises StoreUnavailable."""

    state: FakeState = field(default_factory=FakeState)
    is_away: bool = False

    async def get(self, kind: Kind, name: str) -> Stored | None:
        await self._reach()
        found = self.state.objects.get((kind, name))
        return found if found is not None and found.body is not None else None

    async def list_all(self, kind: Kind) -> list[Stored]:
        await self._reach()
        found = [stored for stored in self.state.objects.values() if stored.kind is kind and stored.body is not None]
        return sorted(found, key=lambda stored: stored.name)

    async def put(self, kind: Kind, name: str, body: Mapping[str, Any], *, expected: int | None = None) -> Stored:
        found = await self.get(kind, name)
        check_expected(kind, name, expected=expected, current=found.resource_version if found else 0)
        return self.state.write(kind, name, dict(body))

    async def delete(self, kind: Kind, name: str, *, expected: int | None = None) -> None:
        found = await self.get(kind, name)
        if found is None:
            raise ObjectNotFound(f"there is no {kind.replace('_', ' ')} {name!r}")
        check_expected(kind, name, expected=expected, current=found.resource_version)
        self.state.write(kind, name, None)

    async def changes(self, since: int, *, timeout_s: float) -> list[Stored]:
        change = asyncio.Event()
        self.state.waiting.add(change)
        try:
            if not self._since(since):
                async with asyncio.timeout(timeout_s):
                    await change.wait()
        except TimeoutError:
            pass
        finally:
            self.state.waiting.discard(change)
        await self._reach()
        return self._since(since)

    async def restore(self, objects: Iterable[Stored]) -> None:
        await self._reach()
        kept = {(stored.kind, stored.name): stored.body for stored in objects}
        for (kind, name), stored in list(self.state.objects.items()):
            if stored.body is not None and (kind, name) not in kept:
                self.state.write(kind, name, None)
        for (kind, name), body in kept.items():
            self.state.write(kind, name, body)

    async def close(self) -> None:
        pass

    def go_away(self) -> None:
        """Become unreachable, like a server that ends: whoever waits for a change is told at once."""
        self.is_away = True
        for change in self.state.waiting:
            change.set()

    def _since(self, since: int) -> list[Stored]:
        if self.is_away:
            raise StoreUnavailable("the store is away")
        check_not_older(since=since, last=self.state.last)
        found = [stored for stored in self.state.objects.values() if stored.resource_version > since]
        return sorted(found, key=lambda stored: stored.resource_version)

    async def _reach(self) -> None:
        if self.is_away:
            raise StoreUnavailable("the store is away")
