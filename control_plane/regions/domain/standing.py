"""What is known of another region, and which one a request goes to: the nearest that is well, has room, and has not just said
that it would not answer such a request. Pure; called by `regions/regions`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from control_plane.core.algorithms.bounded_cache import BoundedCache
from control_plane.core.infer_call import Frontend
from control_plane.regions.domain.credit import Credit
from control_plane.regions.domain.region import Region
from control_plane.regions.domain.window import Window

_NEWEST = 0.3
"""Weight of the newest round trip: the last ten or so make up most of the mean."""
_MAX_SHUT = 1000
"""Tenants and models that are remembered for not being served there."""
LEAST_LEFT_S = 0.005
"""Shortest time that is worth sending a request for, beyond the round trip."""


@dataclass(slots=True)
class Asked:
    """A request as the choice of a region sees it."""

    tenant: str
    model: str
    left_s: float
    """Seconds until its deadline."""
    frontend: Frontend = Frontend.HTTP
    """The port that it goes to."""


@dataclass(slots=True)
class Standing:
    """Standing of one region, as its probes and its answers tell it."""

    region: Region
    is_well: bool = False
    why_not: str = "it was not asked yet"
    round_trip_s: float = inf
    in_flight: int = 0
    window: Window = field(default_factory=Window)
    credit: Credit = field(init=False)
    _away: dict[Frontend, float] = field(default_factory=dict)
    """Until when nothing is sent to a port that was not reached."""
    _shut: BoundedCache[tuple[str, str], float] = field(init=False)
    """Until when a tenant's requests for a model are not sent there; no model is all models."""

    def __post_init__(self) -> None:
        self.credit, self._shut = Credit(self.region.max_share), BoundedCache.of_entries(_MAX_SHUT)

    def heard(self, round_trip_s: float) -> bool:
        """Note a probe that was answered. Returns whether the region was not well before."""
        was_well, self.is_well, self.why_not = self.is_well, True, ""
        known_s = self.round_trip_s
        self.round_trip_s = round_trip_s if known_s == inf else known_s + _NEWEST * (round_trip_s - known_s)
        return not was_well

    def failed(self, why: str) -> bool:
        """Note that it is not to be asked, and why. Returns whether it was well before."""
        was_well, self.is_well, self.why_not = self.is_well, False, why
        return was_well

    def shut(self, tenant: str, model: str, until_s: float) -> None:
        """Send no requests of this tenant for this model there for a while; no model is all models."""
        self._shut.forget((tenant, model))
        self._shut.keep((tenant, model), until_s)

    def unreached(self, frontend: Frontend, until_s: float) -> None:
        """Send nothing to a port for a while that was not reached: the other one may well be."""
        self._away[frontend] = until_s

    def takes(self, asked: Asked, now_s: float) -> bool:
        """Whether the request may be sent there now."""
        if not self.is_well or self.credit.is_spent or not self.window.has_room(self.in_flight, now_s):
            return False
        if asked.left_s < self.round_trip_s + LEAST_LEFT_S:
            return False
        if now_s < self._away.get(asked.frontend, -inf):
            return False
        shut = self._shut
        return now_s >= shut.get((asked.tenant, asked.model), -inf) and now_s >= shut.get((asked.tenant, ""), -inf)


def nearest(standings: Iterable[Standing], asked: Asked, now_s: float) -> Standing | None:
    """Return the region by whose round trip a request is answered first, of those that take it; None: no one does."""
    return min((each for each in standings if each.takes(asked, now_s)), key=lambda each: each.round_trip_s, default=None)
