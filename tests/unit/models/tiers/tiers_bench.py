"""Test bench: `WarmTierManager` over stores in memory and a warm folder on disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from control_plane.models.adapters.warm_tier.tier import DiskWarmTier
from control_plane.models.tiers.warm_tier_manager import WarmTierManager
from tests.fakes.triton.model_store import FakeModelStore, Moves


def model(size: int = 100, fill: bytes = b"w") -> dict[str, bytes]:
    return {"config.pbtxt": b"", "1/model.onnx": fill * size}


def needs(folder: Path) -> Sequence[str]:
    """Return the steps of a model; a configuration file in these tests is just their names."""
    config = folder / "config.pbtxt"
    return config.read_text().split() if config.exists() else ()


class Bench:
    def __init__(self, folder: Path, stores: Sequence[FakeModelStore], max_bytes: int, **options: object) -> None:
        self.moves = Moves()
        self.folder = folder / "warm"
        tier = DiskWarmTier(self.folder, max_bytes=max_bytes)
        self.tiers = WarmTierManager(stores=stores, warm=tier, steps_of=needs, observer=self.moves, **options)  # type: ignore[arg-type]

    async def warm(self, name: str, *, timeout_s: float = 10.0) -> Path:
        return await self.tiers.ensure_warm(name, deadline_s=asyncio.get_running_loop().time() + timeout_s)

    def held(self) -> list[str]:
        return sorted(entry.name for entry in self.folder.iterdir() if not entry.name.startswith("."))

    def partials(self) -> list[Path]:
        return [path for path in (self.folder / ".tidegate/partial").rglob("*") if path.is_file()]


@asynccontextmanager
async def bench(folder: Path, *stores: FakeModelStore, max_bytes: int = 1000, **options: object) -> AsyncIterator[Bench]:
    made = Bench(folder, stores, max_bytes, **options)
    owner = None
    try:
        await made.tiers.open()
        owner = asyncio.get_running_loop().create_task(made.tiers.run())
        await asyncio.sleep(0)
        yield made
    finally:
        if owner is not None:
            owner.cancel()
            await asyncio.wait([owner])
        await made.tiers.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)
