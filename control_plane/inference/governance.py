"""What stands around each request besides serving it: who may call, whose turn it is, what it costs, what was used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from control_plane.admission.admission import Admission
from control_plane.auth.access import Access
from control_plane.core.infer_call import InferCall, Outcome
from control_plane.metering.domain.usage import UsageEvent
from control_plane.triton.compute_time import Ending


class Costs(Protocol):
    """`metering/compute_costs`."""

    def of(self, call: InferCall) -> tuple[int, float, float | None, tuple[str, ...]]: ...

    def charge(self, tenant: str, model: str, steps: Iterable[str], ending: Ending, rows: float, at_triton_ms: float, /) -> None: ...


class Meter(Protocol):
    """`metering/metering`."""

    dropped: int
    """Requests that were not metered."""

    @property
    def has_log(self) -> bool:
        """Whether `log` has any use for an event."""

    def add(self, tenant: str, model: str, outcome: Outcome, rows: int, elements: int, compute_units: float, cache_hit: bool, /) -> None:
        """Count a request that ends now."""

    def add_hits(self, tenant: str, model: str, *, requests: int, rows: int, elements: int) -> None:
        """Count requests that were answered from the cache, with the rows and elements of all of them."""

    def log(self, event: UsageEvent) -> None:
        """A line in the request log, if there is one."""


@dataclass(frozen=True, slots=True)
class Governance:
    """Bundles access, admission, costs and metering of one process, for all its ports."""

    access: Access
    admission: Admission
    costs: Costs
    meter: Meter
