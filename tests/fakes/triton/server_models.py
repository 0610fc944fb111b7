from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass


async def _nothing() -> None: ...


@dataclass
class PlainModels:
    """`fleet/loading/load_plans.ServerModels` straight at a Triton: there are no files or fingerprints."""

    ask_to_load: Callable[[str], Awaitable[None]]
    begin_unload: Callable[[str], Awaitable[None]]
    prepare: Callable[[], Awaitable[None]] = _nothing

    @asynccontextmanager
    async def prepared(self, model: str) -> AsyncIterator[PlainLoad]:
        await self.prepare()
        yield PlainLoad(self.ask_to_load, model)


@dataclass(frozen=True)
class PlainLoad:
    """`fleet/ports.PreparedLoad`."""

    ask_to_load: Callable[[str], Awaitable[None]]
    model: str

    async def load(self) -> None:
        await self.ask_to_load(self.model)
