"""The record by which processes agree on a fleet's leader, as `fleet/ports.LeaseStore` keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Lease:
    """Leader lease: the one record of a fleet. It stays when its holder is gone, and another process takes it
    over."""

    token: int
    """Fencing token: it grows with each takeover."""
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
