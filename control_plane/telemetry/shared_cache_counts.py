"""What became of lookups in the cache that gateways share, and of what was to be kept there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SharedCacheCounts:
    """Since the process began. Each key that was looked up counts once, as one of the first seven."""

    hits: int = 0
    misses: int = 0
    late: int = 0
    """Whoever asked did not wait for the answer."""
    damaged: int = 0
    """What lies there is not what was stored under that key."""
    failed: int = 0
    """Asked for in vain."""
    away: int = 0
    """Not asked for, as there is no connection that answers."""
    slow: int = 0
    """Not asked for, as computing costs less than waiting for the answer."""
    written: int = 0
    dropped: int = 0
    """To be kept and not written, for whatever reason."""
