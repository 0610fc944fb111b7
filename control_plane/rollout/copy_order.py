"""What is to be copied now, and where: a part of a route's requests, to its rollout's next model or to its mirror.

Called by `rollout/shadow` for each request that comes by a route, so it makes nothing where nothing is copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from control_plane.auth.access import Access
from control_plane.inference.domain.assignment import unit_digest
from control_plane.objects.domain.rollout import Rollout
from control_plane.objects.domain.route import WHOLE, Route, arm_name

_LARGE_BYTES = 8192
"""Size from which of a part of a request its CRC-32 is hashed: the caller waits meanwhile, and a digest of 1 MiB takes several times
as long."""


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """Order to copy a part of a route's requests to another model."""

    route: str
    model: str
    version: str
    weight: int
    """Requests of 10,000 that are copied."""
    rollout: Rollout | None = None
    """Rollout whose shadow it is, which learns what becomes of the copies; None for the route's mirror."""

    @property
    def name(self) -> str:
        return arm_name(self.model, self.version)

    def is_same(self, other: CopyOrder | None) -> bool:
        """Whether another order is to the same place, for the same reason."""
        return other is not None and self._identity == other._identity

    @property
    def _identity(self) -> tuple[str, str, str, str]:
        return self.route, self.model, self.version, "" if self.rollout is None else self.rollout.id

    def chooses(self, unit: tuple[bytes, ...]) -> bool:
        """Whether requests with these contents are copied: of equal ones all are, or none."""
        parts = (part if len(part) < _LARGE_BYTES else b"%d %d" % (len(part), crc32(part)) for part in unit)
        return unit_digest(f"{self.route}#mirror", *parts) % WHOLE < self.weight


def order_of(access: Access, route: Route | None) -> CopyOrder | None:
    """Return what is to be copied of a route's requests; None for nothing. While a rollout of the route is under way its mirror
    rests: copies would take the place, or the budget, of what the rollout is judged by."""
    if route is None:
        return None
    rollout = access.shadow(route.name)
    if rollout is not None and rollout.shadow is not None:
        return CopyOrder(route.name, rollout.model, rollout.version, rollout.shadow.weight, rollout)
    mirror = route.mirror
    if mirror is None or not mirror.weight or access.rollout(route.name) is not None:
        return None
    return CopyOrder(route.name, mirror.model, mirror.version, mirror.weight)
