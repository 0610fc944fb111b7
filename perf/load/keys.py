"""Tenants and their keys for scenarios."""

from __future__ import annotations

import asyncio
from pathlib import Path

from control_plane.app.stores import open_state_store
from control_plane.auth.keys import Keys
from control_plane.core.scope import parse_scope
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.objects import Objects

LIMITED = Tenant("perf", requests_per_s=1e6, concurrency=100_000, daily_compute_units=1e9)
"""A tenant with every limit, none of which a scenario reaches: what deciding about each request costs is then in what is measured."""


def make_keys(state: Path, *tenants: Tenant) -> dict[str, str]:
    """A key for inference for each tenant, by its name, in the state folder of a tidegate."""
    return asyncio.run(_make_keys(state, tenants))


async def _make_keys(state: Path, tenants: tuple[Tenant, ...]) -> dict[str, str]:
    store = await open_state_store(None, state)
    try:
        for tenant in tenants:
            await Objects(store).put(tenant)
        return {tenant.name: (await Keys(store).create(tenant.name, [parse_scope("infer:*")]))[1] for tenant in tenants}
    finally:
        await store.close()
