"""Authentication, admission and metering for tests of the frontends and inference: open to everybody, or with
given keys, tenants and routes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256

from control_plane.admission.admission import Admission
from control_plane.admission.concurrency_limiter import SlotLimits
from control_plane.admission.domain.fair_queue import QueueLimits
from control_plane.admission.rate_leases import RateLeases
from control_plane.admission.waiting_room import WaitingLimits
from control_plane.auth.access import Access
from control_plane.auth.authentication import Authentication
from control_plane.auth.domain.auth_backoff import AuthBackoff
from control_plane.core.infer_call import InferCall, Outcome
from control_plane.core.scope import parse_scope
from control_plane.inference.governance import Governance
from control_plane.metering.domain.usage import UsageEvent
from control_plane.objects.domain.api_key import ApiKey
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.mirror import ObjectMirror
from control_plane.triton.compute_time import Ending
from tests.fakes.stores.state_store import FakeStateStore


class FakeCosts:
    """Cost table by which each row is one unit. For models in `counted`, Triton's statistics tell the cost,
    and that many units are expected."""

    def __init__(self) -> None:
        self.counted: dict[str, float | None] = {}
        self.charged: list[tuple[str, str, Ending, float, float]] = []

    def estimate(self, call: InferCall) -> tuple[int, float, float | None, tuple[str, ...]]:
        rows = call.inputs[0].shape[0] if call.inputs and call.inputs[0].shape else 1
        if call.model_name in self.counted:
            return rows, 0.0, self.counted[call.model_name], (call.model_name,)
        return rows, float(rows), 0.0, ()

    def charge(self, tenant: str, model: str, steps: Iterable[str], ending: Ending, rows: float, at_triton_ms: float, /) -> None:
        assert steps == (model,)
        self.charged.append((tenant, model, ending, rows, at_triton_ms))


@dataclass
class FakeMeter:
    """Meter that records its calls. It checks that a line of the usage log repeats what was counted just
    before; the line may expect more units than were counted."""

    added: list[tuple[str, str, Outcome, int, int, float, bool]] = field(default_factory=list)
    events: list[UsageEvent] = field(default_factory=list)
    tokens: list[tuple[str, str, int, int]] = field(default_factory=list)
    dropped: int = 0
    has_log: bool = True
    units: dict[str, float] = field(default_factory=dict)
    """Compute units by tenant that were noted by themselves (`note_units`)."""

    def note_units(self, tenant: str, compute_units: float) -> None:
        self.units[tenant] = self.units.get(tenant, 0.0) + compute_units

    def add(self, tenant: str, model: str, outcome: Outcome, rows: int, elements: int, compute_units: float, cache_hit: bool, /) -> None:
        self.added.append((tenant, model, outcome, rows, elements, compute_units, cache_hit))

    def add_hits(self, tenant: str, model: str, *, requests: int, rows: int, elements: int) -> None:
        each = (tenant, model, Outcome.ANSWERED, rows // requests, elements // requests, 0.0, True)
        self.added += [each] * requests

    def add_refusals(self, tenant: str, model: str, *, requests: int) -> None:
        self.added += [(tenant, model, Outcome.REFUSED, 0, 0, 0.0, False)] * requests

    def add_tokens(self, tenant: str, model: str, input_tokens: int, output_tokens: int, /) -> None:
        self.tokens.append((tenant, model, input_tokens, output_tokens))

    def log(self, event: UsageEvent) -> None:
        if event.server.startswith("region:"):  # counted where it was computed
            self.events.append(event)
            return
        *told, units, cache_hit = self.added[-1]
        assert (*told, cache_hit) == (event.tenant, event.model, event.outcome, event.rows, event.elements, event.cache_hit)
        assert event.compute_units is None or event.compute_units >= units
        self.events.append(event)


def known_state(*, keys: tuple[ApiKey, ...] = (), tenants: tuple[Tenant, ...] = (), routes: tuple[Route, ...] = ()) -> ObjectMirror:
    """Return an object mirror that holds these objects."""
    known = ObjectMirror(FakeStateStore())
    known.keys = {key.id: key for key in keys}
    known.tenants = {tenant.name: tenant for tenant in tenants}
    known.routes = {route.name: route for route in routes}
    return known


def governance(
    known: ObjectMirror | None = None,
    *,
    authentication: bool = False,
    max_in_flight_per_model: int = 1000,
    now_s: Callable[[], float] = time.monotonic,
    meter: FakeMeter | None = None,
    costs: FakeCosts | None = None,
    leases: RateLeases | None = None,
    waiting: WaitingLimits | None = None,
) -> Governance:
    """Return a governance; without authentication everybody may do everything."""
    known = known or known_state()
    access = Access(known, Authentication(known, None, attempts=AuthBackoff()) if authentication else None)
    slots = SlotLimits(max_in_flight_per_model, max_in_flight_per_model)
    admission = Admission(
        known, slots=slots, queue=QueueLimits(), now_s=now_s, leases=leases, **({} if waiting is None else {"waiting": waiting})
    )
    return Governance(access, admission, costs or FakeCosts(), meter or FakeMeter())


def key_text(number: int) -> str:
    """Return the secret text of the key that `api_key` makes of the same number."""
    return f"tg_{number:012x}_{number:043d}"


def api_key(number: int, *scopes: str, tenant: str = "team", expires_s: float | None = None, revoked_s: float | None = None) -> ApiKey:
    digest = sha256(f"{number:043d}".encode()).hexdigest()
    return ApiKey(f"{number:012x}", tenant, tuple(map(parse_scope, scopes)), digest, 0.0, expires_s, revoked_s)
