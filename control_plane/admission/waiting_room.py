"""Waiting room of one process: a bound on the requests that wait for a model, in its queue or until it is loaded, and on the
bytes of their bodies, of each tenant and of all together.

Each model's queue has bounds of its own, but a fleet may have thousands of models, and one connection over HTTP/2 a
thousand calls. A place is taken where a request begins to wait, and left where it goes on, is refused or is cancelled.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from control_plane.core.errors import LimitExceeded, Overloaded
from control_plane.telemetry.shed_reason import ShedReason


@dataclass(frozen=True, slots=True)
class WaitingLimits:
    """Bounds of a waiting room."""

    requests: int
    requests_per_tenant: int
    size_bytes: int
    """Size of all bodies together; a body that exceeds it by itself may wait while no other does."""
    bytes_per_tenant: int


class WaitingRoom:
    """Bound on the requests of one process that wait."""

    def __init__(self, limits: WaitingLimits, sheds: Counter[tuple[str, ShedReason]]) -> None:
        """Refusals are counted in `sheds`."""
        self._limits = limits
        self._sheds = sheds
        self._requests = Counter[str]()
        """Number of waiting requests by tenant; a tenant without any has no entry."""
        self._bytes = Counter[str]()
        """Bytes of the waiting requests' bodies, by the same tenants."""
        self.requests = self.size_bytes = 0

    def enter(self, tenant: str, size_bytes: int, *, retry_after_s: float) -> Place:
        """Take a place until `Place.leave`; `retry_after_s` is when others should have left theirs.

        Raises LimitExceeded: the tenant has as many as it may have. Overloaded: the room is full.
        """
        limits = self._limits
        held, held_bytes = self._requests[tenant], self._bytes[tenant]
        if held and (held >= limits.requests_per_tenant or held_bytes + size_bytes > limits.bytes_per_tenant):
            self._forget_unless_here(tenant)
            self._sheds[tenant, ShedReason.QUEUE_FULL] += 1
            raise LimitExceeded(
                f"tenant {tenant!r} has {held} requests of {held_bytes} bytes that wait for models, as many as it may have",
                retry_after_s=retry_after_s,
            )
        if self.requests and (self.requests >= limits.requests or self.size_bytes + size_bytes > limits.size_bytes):
            self._forget_unless_here(tenant)
            self._sheds[tenant, ShedReason.QUEUE_FULL] += 1
            raise Overloaded(
                f"{self.requests} requests of {self.size_bytes} bytes wait for models, and there is no room for more; try again later",
                retry_after_s=retry_after_s,
            )
        self._add(tenant, 1, size_bytes)
        return Place(self, tenant, size_bytes)

    def leave(self, tenant: str, size_bytes: int) -> None:
        """Give a place back; called by `Place.leave`."""
        self._add(tenant, -1, -size_bytes)
        self._forget_unless_here(tenant)

    def _add(self, tenant: str, requests: int, size_bytes: int) -> None:
        self._requests[tenant] += requests
        self._bytes[tenant] += size_bytes
        self.requests += requests
        self.size_bytes += size_bytes

    def _forget_unless_here(self, tenant: str) -> None:
        """Bearer tokens may name any number of tenants, so they must not pile up."""
        if not self._requests[tenant]:
            del self._requests[tenant], self._bytes[tenant]


class Place:
    """Place of one request in a waiting room, which several of its batches may share; left once by each."""

    __slots__ = ("_held", "_room", "_size_bytes", "_tenant")

    def __init__(self, room: WaitingRoom, tenant: str, size_bytes: int) -> None:
        self._room, self._tenant, self._size_bytes = room, tenant, size_bytes
        self._held = 1

    def share(self) -> bool:
        """Have it left once more before it is free; False: it has been left."""
        if not self._held:
            return False
        self._held += 1
        return True

    def leave(self) -> None:
        self._held -= 1
        if not self._held:
            self._room.leave(self._tenant, self._size_bytes)
