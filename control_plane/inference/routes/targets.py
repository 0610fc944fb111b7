"""Chooses the target of each request that comes by a route with several models, and keeps sequences where they began.

What sticks is hashed (`inference/domain/assignment`), so that every process chooses alike and equal requests go to
equal models: the response cache finds them again. Only of sequences is anything remembered, since the weights may
change while one goes on. Called by `inference/inference` for each request that a route with targets names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from control_plane.auth.access import Access
from control_plane.core.algorithms.bounded_cache import BoundedCache
from control_plane.core.errors import InvalidRequest
from control_plane.core.infer_call import InferCall
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.inference.domain.assignment import target_of, unit_digest
from control_plane.inference.domain.budgets import budgets_of
from control_plane.inference.routes.budget_dial import BudgetChoice, BudgetDial
from control_plane.objects.domain.route import WHOLE, Route, arm_name

TARGET_HEADER = "tidegate-target"
"""Request header (HTTP) or metadata (gRPC) by which a tester chooses a route's target: `model`, or `model@version`."""
MODEL_HEADER = "tidegate-model"
"""Response header (HTTP) or trailer (gRPC) that names the model which a route with targets has chosen, as `model@version`
where several versions of it are targets."""
HEADER_PREFIX = "header:"
WHOLE_BYTES = 2**20
"""Largest request that is hashed as a whole; of a larger one, which is never cached, its two ends are."""

_MAX_SEQUENCES = 10_000


class Assignee(Protocol):
    """A request that is to be assigned to a target, as its frontend holds it."""

    def field(self, name: str) -> str | None:
        """The header field or metadata of this lower-case name; None where there is none."""

    def unit(self, call: InferCall) -> tuple[bytes, ...]:
        """What its answer is computed from, without its id; of a large request, parts that tell it from others."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Assignment of one request: the route's own model (stable), or one of its targets (candidate)."""

    route: Route
    call: InferCall
    """The call as it goes to the chosen model."""
    stable: InferCall
    """The call as it would go to the route's own model."""
    digest: int
    """Digest of what a caller is assigned by: requests of one digest are not independent of each other."""
    is_assigned: bool = True
    """False where the caller chose the target, which says nothing of other requests."""
    by_budget: BudgetChoice | None = None
    """The choice by the request's budgets; None: it has none, or was assigned by something else."""

    def beside(self, other: Arm) -> Arm:
        """Return the assignment of this call to the model that `other`, of the same route, was assigned to, if that is one
        of its models yet."""
        if not (self.is_assigned and other.is_assigned) or _is_to(self.call, other.place) or other.place not in self.route.arms:
            return self
        return replace(self, call=_sent_to(self.call, self.stable, other.place, self.route), by_budget=None)

    @property
    def place(self) -> tuple[str, str]:
        """Model and version that were chosen."""
        return self.call.model_name, self.call.model_version

    @property
    def name(self) -> str:
        """Name of what was chosen, which the answer carries."""
        model, version = self.place
        return arm_name(model, version if self.route.models.count(model) > 1 else "")

    @property
    def weight(self) -> int:
        """Requests of 10,000 that the chosen target gets; all of them for the route's own model."""
        return next((each.weight for each in self.route.targets if (each.model, each.version) == self.place), WHOLE)

    @property
    def is_stable(self) -> bool:
        """Whether the route's own model was chosen."""
        return self.call is self.stable

    @property
    def is_makeshift(self) -> bool:
        """Whether a faster model was chosen, only for now: an equal request later may go to a better one."""
        return self.by_budget is not None and not self.is_stable


def ends_of(body: bytes | bytearray | memoryview) -> tuple[bytes, ...]:
    """Return the two ends and the length of a body that is too large to be hashed as a whole."""
    half = WHOLE_BYTES // 2
    return (bytes(body[:half]), bytes(body[-half:]), b"%d" % len(body))


class RouteTargets:
    """Chooser of targets, of one process."""

    def __init__(self, access: Access, dial: BudgetDial) -> None:
        self._access = access
        self._dial = dial
        self._sequences = BoundedCache[int, tuple[str, str]].of_entries(_MAX_SEQUENCES)
        """Model and version of the sequences under way, by the digest of route, tenant and sequence id."""

    def choose(self, route: Route, call: InferCall, principal: Principal, request: Assignee) -> Arm:
        """Choose the target of a request that names `route`.

        Raises InvalidRequest: it asks for a target that the route does not have. PermissionDenied: its caller may not call
        that model by its own name.
        """
        stable = replace(call, model_name=route.model, model_version=call.model_version or route.version)
        digest = self._digest(route, call, principal, request)
        wanted = request.field(TARGET_HEADER)
        if wanted is not None:
            return Arm(route, self._call_to(route, wanted, call, stable, principal), stable, digest, is_assigned=False)
        if call.model_version:  # a version is the route's own model's: no other model has it
            return Arm(route, stable, stable, digest, is_assigned=False)
        target = target_of(route, digest)
        chosen = stable if target is None else replace(call, model_name=target.model, model_version=target.version)
        if call.sequence_id:
            chosen = self._where_it_began(route, call, stable, chosen, principal.tenant)
        elif target is None and route.faster and (budgets := budgets_of(request.field, route)) is not None:
            faster = (replace(call, model_name=each.model, model_version=each.version) for each in route.faster)
            choice = self._dial.choose([stable, *faster], budgets, tenant=principal.tenant)
            return Arm(route, choice.call, stable, digest, by_budget=choice)
        return Arm(route, chosen, stable, digest)

    def remembers(self, route: Route, call: InferCall, tenant: str) -> bool:
        """Whether a sequence of a route with one model goes on that began before: it ends where it began, though the
        route may have had another model or targets then. One that begins is remembered, for it may have them soon."""
        if not (self._sequences.keys or call.starts_sequence):
            return False
        key = _key(route, call, tenant)
        if call.starts_sequence:  # another one of the same id
            self._sequences.forget(key)
            if not call.ends_sequence:
                self._sequences.keep(key, (route.model, call.model_version or route.version))
            return False
        return key in self._sequences.keys

    def _digest(self, route: Route, call: InferCall, principal: Principal, request: Assignee) -> int:
        salt = route.salt or route.name
        unit: bytes | None = None
        if route.sticky == "tenant":
            unit = principal.tenant.encode()
        elif route.sticky == "key":
            unit = (principal.key_id or principal.tenant).encode()
        elif route.sticky.startswith(HEADER_PREFIX):
            found = request.field(route.sticky.removeprefix(HEADER_PREFIX))
            unit = found.encode() if found else None
        if unit:
            return unit_digest(salt, b"sticky", unit)
        if call.sequence_id:
            return unit_digest(salt, b"sequence", principal.tenant.encode(), call.sequence_id.encode())
        return unit_digest(salt, *request.unit(call))

    def _call_to(self, route: Route, wanted: str, call: InferCall, stable: InferCall, principal: Principal) -> InferCall:
        arm = route.arm_named(wanted)
        if arm is None:
            raise InvalidRequest(
                f"{TARGET_HEADER}: {wanted[:100]!r} is no target of route {route.name!r}; it has "
                + ", ".join(arm_name(model, version if route.models.count(model) > 1 else "") for model, version in route.arms),
                field=TARGET_HEADER,
            )
        if principal is not ANONYMOUS:
            self._access.require_inference(principal, arm[0], self._access.route(arm[0]))
        if arm == (route.model, route.version):
            return stable
        return replace(call, model_name=arm[0], model_version=call.model_version or arm[1])

    def _where_it_began(self, route: Route, call: InferCall, stable: InferCall, chosen: InferCall, tenant: str) -> InferCall:
        """The call to the model that the sequence began with, as far as this process has seen that."""
        key = _key(route, call, tenant)
        held = None if call.starts_sequence else self._sequences.get(key)
        if held is not None and not _is_to(chosen, held):
            chosen = _sent_to(call, stable, held, route)
        self._sequences.forget(key)
        if not call.ends_sequence:
            self._sequences.keep(key, (chosen.model_name, chosen.model_version))
        return chosen


def _is_to(call: InferCall, place: tuple[str, str]) -> bool:
    return (call.model_name, call.model_version) == place


def _sent_to(call: InferCall, stable: InferCall, place: tuple[str, str], route: Route) -> InferCall:
    """The call to this model and version; `stable` itself where they are the route's own."""
    return stable if place == (route.model, route.version) else replace(call, model_name=place[0], model_version=place[1])


def _key(route: Route, call: InferCall, tenant: str) -> int:
    return unit_digest(route.name, tenant.encode(), call.sequence_id.encode())
