"""Ports for the governance of each request: access, admission, cost and metering; `app` bundles them for
`inference`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from control_plane.admission.admission import Admission
from control_plane.auth.access import Access
from control_plane.core.infer_call import InferCall, Outcome
from control_plane.metering.domain.usage import UsageEvent
from control_plane.triton.compute_time import Ending


class Costs(Protocol):
    """Cost estimator in compute units; `metering/compute_costs` implements it."""

    def estimate(self, call: InferCall) -> tuple[int, float, float | None, tuple[str, ...]]:
        """Return the call's rows, its units by latency table, its units beyond those (None: unknown), and the models to charge
        later."""

    def charge(self, tenant: str, model: str, steps: Iterable[str], ending: Ending, rows: float, at_triton_ms: float, /) -> None:
        """Charge the tenant for what the models `steps` computed, once Triton's counts show how much that was."""


class Meter(Protocol):
    """Usage meter by tenant and model; `metering/metering` implements it."""

    dropped: int
    """Requests that could not be metered."""

    @property
    def has_log(self) -> bool:
        """Whether there is a request log, so that building events for `log` is worth it."""

    def add(self, tenant: str, model: str, outcome: Outcome, rows: int, elements: int, compute_units: float, cache_hit: bool, /) -> None:
        """Count one request that ends now."""

    def add_hits(self, tenant: str, model: str, *, requests: int, rows: int, elements: int) -> None:
        """Count requests that were answered from the cache, with the rows and elements of all of them."""

    def add_refusals(self, tenant: str, model: str, *, requests: int) -> None:
        """Count requests that were refused as equal ones were."""

    def add_tokens(self, tenant: str, model: str, input_tokens: int, output_tokens: int, /) -> None:
        """Count the tokens that a generative model read and generated for a request."""

    @property
    def units(self) -> Mapping[str, float]:
        """Compute units so far by tenant, for the metrics."""

    def note_units(self, tenant: str, compute_units: float) -> None:
        """Count units for the metrics that are charged by other means."""

    def log(self, event: UsageEvent) -> None:
        """Write a line to the request log, if there is one."""


@dataclass(frozen=True, slots=True)
class Governance:
    """Bundle of the access rules, admission, costs and metering that the frontends of one process share."""

    access: Access
    admission: Admission
    costs: Costs
    meter: Meter
