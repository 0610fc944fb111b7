"""The record by which processes agree on a fleet's leader, as `fleet/ports.LeaseStore` keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field

_TOKENS_BEGIN_S = 1_767_225_600
"""1 January 2026, UTC, in seconds since 1970: from then on seconds fit into the 32 bits of a Kubernetes Lease's
`leaseTransitions` until 2094."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Leader lease: the one record of a fleet. It stays when its holder is gone, and another process takes it
    over."""

    token: int
    """Fencing token: it grows with each takeover (`next_token`)."""
    holder: str
    """The holder's name, unique to one run of one process: after a restart it is another one."""
    ttl_s: float
    """How long after it asked for a renewal the holder may rely on the lease; others must see it unchanged
    for longer to take it."""
    beat: int = 0
    """Heartbeat: it grows with each renewal, so a lease whose beat stands still is not being renewed."""
    is_released: bool = False
    """The holder has stopped and starts no more work, so others need not wait out `ttl_s`."""
    run: str = field(default="", compare=False)
    """Run of the store that answered its holder: a store that is still in the same run has lost no write since.
    Empty where a store cannot tell."""


def next_token(highest: int, wall_s: float) -> int:
    """Return the fencing token of a takeover: above the highest one seen, and no less than the seconds since 2026.

    So it grows also where the store has lost the record and the process never saw it: nodes, which remember, refuse lower
    ones for a while (`node/domain/fence`). Only that case relies on the hosts' clocks.
    """
    return max(highest + 1, int(wall_s) - _TOKENS_BEGIN_S)
