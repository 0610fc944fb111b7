"""Admission with few slots, and requests that take their turns."""

from __future__ import annotations

import asyncio

from control_plane.admission.admission import Admission
from control_plane.admission.concurrency_limiter import SlotLimits
from control_plane.admission.domain.fair_queue import QueueLimits
from control_plane.admission.permit import Permit
from control_plane.core.errors import Overloaded
from control_plane.objects.domain.tenant import Tenant
from tests.sharing import Tenants

SOON_S = 1e3


def admission(*tenants: Tenant, capacity: int = 1, room: int = 100) -> Admission:
    return Admission(
        Tenants(*tenants),
        slots=SlotLimits(capacity, capacity),
        queue=QueueLimits(room, room),
        now_s=asyncio.get_running_loop().time,
        today_s=lambda: 0.0,
    )


async def turn(permit: Permit, model: str = "m", *, cost_units: float = 1.0, seconds: float = SOON_S) -> None:
    await permit.acquire_slot(model, cost_units=cost_units, deadline_s=asyncio.get_running_loop().time() + seconds)


async def goes_at_once(admission: Admission, model: str = "m") -> bool:
    """Whether a request would get a slot now."""
    permit = admission.admit("")
    try:
        await turn(permit, model, seconds=0.0)
    except Overloaded:
        return False
    finally:
        permit.release()
    return True
