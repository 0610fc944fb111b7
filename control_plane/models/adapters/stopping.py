"""How calls of stores and of the warm tier end in the middle of their work; used by `models/adapters`."""

from __future__ import annotations

from control_plane.core.errors import StoreUnavailable
from control_plane.models.ports import Stop


def require_going(stop: Stop) -> None:
    """Raise StoreUnavailable if the call was told to stop."""
    if stop.is_set():
        raise StoreUnavailable("the gateway is stopping")
