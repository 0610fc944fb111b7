"""Which process owns a fleet, as `fleet/ports.LeaseStore` has it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """The one record of a fleet; it stays when its holder is gone, and is taken over."""

    token: int
    """Grows with each takeover."""
    holder: str
    """A name that no other process has, nor the same one after a restart."""
    ttl_s: float
    """For so long after it asked for a renewal the holder may believe in it; whoever would take it lets so long pass."""
    beat: int = 0
    """Grows with each renewal: one that does not grow is not renewed."""
    is_released: bool = False
    """The holder has ended and begins nothing more."""
