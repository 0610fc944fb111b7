"""A tenant with every limit, none of which a scenario reaches, and its key: deciding about each request is then in what is measured."""

from __future__ import annotations

import asyncio
from pathlib import Path

from control_plane.adapters.state_store import open_state_store
from control_plane.domain.scope import parse_scope
from control_plane.domain.tenant import Tenant
from control_plane.services.keys import Keys
from control_plane.services.objects import Objects

TENANT = Tenant("perf", requests_per_s=1e6, concurrency=100_000, daily_compute_units=1e9)


def make_key(state: Path) -> str:
    """The text of a key for inference, in the state folder of a tidegate that is started afterwards."""
    return asyncio.run(_make_key(state))


async def _make_key(state: Path) -> str:
    store = await open_state_store(None, state)
    try:
        await Objects(store).put(TENANT)
        _, text = await Keys(store).create(TENANT.name, [parse_scope("infer:*")])
        return text
    finally:
        await store.close()
