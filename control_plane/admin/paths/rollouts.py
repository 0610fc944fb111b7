"""Paths of the admin API for rollouts: begin one, look at it, pause, resume, promote and abort it."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

from fastapi import FastAPI
from pydantic import Field

from control_plane.admin.actor import By
from control_plane.admin.declared.rollout_policies import Alpha, SlowerBy, StepView
from control_plane.admin.errors import error_responses
from control_plane.admin.idempotency import Once
from control_plane.admin.paging import Paged
from control_plane.admin.views import NAME, NAME_OR_NONE, Name, Spec
from control_plane.audit.trail import AuditTrail
from control_plane.core.errors import ErrorCode, InvalidRequest, NotSupported
from control_plane.objects.domain.rollout import Phase, Rollout
from control_plane.objects.domain.rollout_policy import GatePolicy, RolloutPolicy
from control_plane.objects.domain.stored_objects import MAX_STEPS, VERSION
from control_plane.objects.objects import Objects, Versioned
from control_plane.rollout.domain.machine import aborted, paused, promoted, resumed
from control_plane.rollout.rollouts import Rollouts, RolloutSpec

_LIST_ERRORS = error_responses(ErrorCode.STORE_UNAVAILABLE, ErrorCode.INVALID_ARGUMENT)
_GET_ERRORS = _LIST_ERRORS | error_responses(ErrorCode.INVALID_ARGUMENT, ErrorCode.OBJECT_NOT_FOUND)
_CHANGE_ERRORS = _GET_ERRORS | error_responses(ErrorCode.CONFLICT)
_START_ERRORS = _CHANGE_ERRORS | error_responses(
    ErrorCode.MODEL_NOT_FOUND,
    ErrorCode.LOAD_FAILED,
    ErrorCode.OVERLOADED,
    ErrorCode.UPSTREAM_UNAVAILABLE,
    ErrorCode.UPSTREAM_FAILED,
    ErrorCode.DEADLINE_EXCEEDED,
    ErrorCode.PAYLOAD_TOO_LARGE,
    ErrorCode.NOT_SUPPORTED,
)


class Verb(StrEnum):
    """Change of a rollout by hand."""

    PAUSE = "pause"
    RESUME = "resume"
    PROMOTE = "promote"
    ABORT = "abort"


_CHANGES = {Verb.PAUSE: paused, Verb.RESUME: resumed, Verb.PROMOTE: promoted, Verb.ABORT: aborted}


class RolloutStart(Spec):
    """The next model of a route, and how it takes over."""

    model: Annotated[str, Field(pattern=NAME)]
    """The next model; it must be loaded, and have another name than the present one."""
    version: str = Field("", pattern=f"^{VERSION.pattern}$")
    policy: str = Field("", pattern=NAME_OR_NONE)
    """RolloutPolicy that has whatever is not given here; empty: none."""
    steps: list[StepView] = Field(default_factory=list, max_length=MAX_STEPS)
    """Weights rise from step to step. After the last one the next model becomes the route's. Empty: the policy's."""
    slower_by: SlowerBy | None = None
    """A request of the next model counts as slow from so many times what is slow for the present one; null: the policy's,
    else 1.1."""
    alpha: Alpha | None = None
    """Chance that the next model is rolled back though it is no worse; null: the policy's, else 0.01."""

    def spec(self, policy: RolloutPolicy | None) -> RolloutSpec:
        """Return what is asked for, completed by the policy. Raises InvalidRequest, NotSupported."""
        if policy is not None:
            _refuse_unknown(policy)
        gates = policy.gates if policy is not None else GatePolicy()
        steps = tuple(step.step() for step in self.steps) or (policy.steps if policy is not None else ())
        if not steps:
            raise InvalidRequest("a rollout needs steps, or a policy that has them: `tidegate get RolloutPolicy` lists those there are")
        slower_by, alpha = self.slower_by or gates.slower_by, self.alpha or gates.alpha
        return RolloutSpec(self.model, steps, self.version, slower_by, alpha)


def _refuse_unknown(policy: RolloutPolicy) -> None:
    """Raise NotSupported for what this gateway could not carry out: better no rollout than one with fewer checks than declared."""
    wanted = {"gates.agreement": policy.gates.agreement, "bake_s": policy.bake_s}
    if unknown := [field for field, value in wanted.items() if value]:
        raise NotSupported(f"RolloutPolicy {policy.name!r}: this version of the gateway cannot do {' and '.join(unknown)}; leave it out")


class EventView(Spec):
    """Something that has happened in a rollout; `at_s` is in seconds since 1970."""

    at_s: float
    what: str
    weight: int
    by: str


class GateView(Spec):
    """A gate: samples and bad ones of each arm, and the evidence that the next model is worse, of all gateways as far as this one knows."""

    name: str
    canary: int
    canary_bad: int
    stable: int
    stable_bad: int
    log_evidence: float
    """Natural logarithm; the gate fails where it reaches `fails_at`."""
    fails_at: float


class RolloutView(Spec):
    """The last rollout of a route."""

    route: str
    id: str
    model: str
    version: str
    stable: str
    stable_version: str
    phase: Phase
    step: int
    """Number of the present step, from 0."""
    steps: list[StepView]
    weight: int
    entered_s: float
    is_paused: bool
    reason: str
    slower_by: float
    alpha: float
    events: list[EventView]
    gates: list[GateView]
    step_samples: int
    """Requests that the next model has computed in this step, each caller or content once."""
    left_s: float | None
    """Seconds until the step has its samples at the present rate; null while there are none."""
    resource_version: int


def add_rollout_paths(app: FastAPI, rollouts: Rollouts, objects: Objects, trail: AuditTrail) -> None:
    """Add `/rollouts` and the paths below it."""

    def view(held: Versioned[Rollout]) -> RolloutView:
        rollout, status = held.value, rollouts.status(held.value)
        fields = asdict(rollout)
        del fields["token"]
        return RolloutView.model_validate(
            {
                **fields,
                "phase": rollout.phase,
                "weight": rollout.weight,
                "steps": [asdict(step) for step in rollout.steps],
                "events": [asdict(event) for event in rollout.events],
                "gates": [asdict(gate) for gate in status.gates],
                "step_samples": status.step_samples,
                "left_s": status.left_s,
                "resource_version": held.resource_version,
            }
        )

    @app.get("/rollouts", tags=["rollouts"], responses=_LIST_ERRORS)
    async def list_rollouts(paging: Paged) -> list[RolloutView]:
        """The last rollout of each route."""
        return [view(held) for held in paging.page(await rollouts.list_all(), key=lambda held: held.value.route)]

    @app.get("/rollouts/{name}", tags=["rollouts"], responses=_GET_ERRORS)
    async def get_rollout(name: Name) -> RolloutView:
        """The last rollout of a route."""
        return view(await rollouts.get(name))

    @app.post("/rollouts/{name}", tags=["rollouts"], status_code=201, responses=_START_ERRORS, dependencies=[Once])
    async def start_rollout(name: Name, start: RolloutStart, by: By) -> RolloutView:
        """Begin a rollout of a route. Refused where the next model breaks what callers of the present one rely on."""
        policy = (await objects.get(RolloutPolicy, start.policy)).value if start.policy else None
        spec = start.spec(policy)
        after = {"policy": start.policy, **asdict(spec), "steps": [asdict(step) for step in spec.steps]}
        async with trail.recorded(by, "start", "Rollout", name, after=after):
            return view(await rollouts.start(name, spec, by=by.who))

    @app.post("/rollouts/{name}/{verb}", tags=["rollouts"], responses=_CHANGE_ERRORS)
    async def change_rollout(name: Name, verb: Verb, by: By) -> RolloutView:
        """Change a rollout that is under way."""
        now_s = rollouts.now_s()
        async with trail.recorded(by, verb.value, "Rollout", name):
            return view(await rollouts.change(name, lambda rollout: _CHANGES[verb](rollout, now_s=now_s, by=by.who)))
