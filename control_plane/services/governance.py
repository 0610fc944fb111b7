"""What stands around each request besides serving it: who may call, whose turn it is, what it costs, what was used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from control_plane.domain.inference import InferCall
from control_plane.domain.usage import UsageEvent
from control_plane.services.access import Access
from control_plane.services.admission import Admission


class Costs(Protocol):
    """`services.compute_costs`."""

    def rows(self, call: InferCall) -> int: ...

    def estimate(self, call: InferCall) -> float: ...

    def charged(self, call: InferCall, upstream_s: float) -> float: ...


class Meter(Protocol):
    """`services.metering`."""

    dropped: int
    """Events that were not metered."""

    def record(self, event: UsageEvent) -> None: ...


@dataclass(frozen=True, slots=True)
class Governance:
    """Of one process, for all doors."""

    access: Access
    admission: Admission
    costs: Costs
    meter: Meter
