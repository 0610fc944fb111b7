"""A process that makes one model warm, to be killed while it does: `python -m tests.warm_fetcher URL WARM_DIR MODEL`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from control_plane.models.adapters.model_store import FsspecModelStore
from control_plane.models.adapters.warm_tier.tier import DiskWarmTier
from control_plane.models.tiers.warm_tier_manager import WarmTierManager
from control_plane.triton.adapters.model_config import composing_models
from tests.fakes.triton.model_store import Moves

CHUNK_BYTES = 1 << 20


@asynccontextmanager
async def tiers_over(url: str, warm_dir: Path) -> AsyncIterator[WarmTierManager]:
    """As the gateway runs them."""
    tiers = WarmTierManager(
        stores=[FsspecModelStore(url)],
        warm=DiskWarmTier(warm_dir, max_bytes=1 << 30, chunk_bytes=CHUNK_BYTES),
        steps_of=lambda folder: composing_models(folder, ""),
        observer=Moves(),
    )
    await tiers.open()
    owner = asyncio.get_running_loop().create_task(tiers.run())
    await asyncio.sleep(0)
    try:
        yield tiers
    finally:
        owner.cancel()
        await asyncio.wait([owner])
        await tiers.close()


async def fetch(url: str, warm_dir: Path, model: str) -> Path:
    async with tiers_over(url, warm_dir) as tiers:
        return await tiers.ensure_warm(model, deadline_s=asyncio.get_running_loop().time() + 30.0)


if __name__ == "__main__":
    asyncio.run(fetch(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
