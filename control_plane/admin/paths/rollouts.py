"""Paths of the admin API for rollouts: begin one, look at it, pause, resume, promote and abort it."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

from fastapi import FastAPI
from pydantic import Field

from control_plane.admin.actor import By
from control_plane.admin.declared.rollout_policies import Alpha, SlowerBy, StepView
from control_plane.admin.errors import CHANGE_ERRORS, GET_ERRORS, LIST_ERRORS, error_responses
from control_plane.admin.idempotency.middleware import Once
from control_plane.admin.paging import Paged
from control_plane.admin.schema.path_parameters import Name
from control_plane.admin.schema.views import NAME, NAME_OR_NONE, Spec, Whole
from control_plane.audit.trail import AuditTrail
from control_plane.core.errors import ErrorCode, InvalidRequest
from control_plane.objects.domain.rollout import Agreement, Phase, Rollout, Step
from control_plane.objects.domain.rollout_policy import GatePolicy, RolloutPolicy
from control_plane.objects.domain.route import WHOLE
from control_plane.objects.domain.validation import MAX_BAKE_S, MAX_OUTPUT_CHARS, MAX_STEPS, VERSION
from control_plane.objects.objects import Objects, Versioned
from control_plane.rollout.domain.machine import aborted, paused, promoted, resumed
from control_plane.rollout.rollouts import Rollouts, RolloutSpec

_START_ERRORS = CHANGE_ERRORS | error_responses(
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


class ShadowView(Spec):
    """The phase before the first step: so many requests of 10,000 are copied to the next model, whose answers nobody waits for."""

    weight: Annotated[int, Field(ge=0, le=WHOLE), Whole] = 1000
    samples: Annotated[int, Field(ge=0, le=10**9), Whole] = 200
    min_s: Annotated[float, Field(allow_inf_nan=False, ge=0, le=1e7)] = 30.0


def _shadow_view(shadow: Step) -> ShadowView:
    return ShadowView(weight=shadow.weight, samples=shadow.samples, min_s=shadow.min_s)


class AgreementView(Spec):
    """Comparison of the answers to copied requests with the present model's."""

    kind: str
    """One of exact, tolerance, classes, same-space, another-space and edit-distance."""
    output: str = Field("", max_length=MAX_OUTPUT_CHARS)
    """Output tensor that is compared; empty for all of them."""
    limit: Annotated[float, Field(allow_inf_nan=False, ge=0, le=1e9)] | None = None
    """Limit of the kind, such as the least cosine; null for the kind's own."""
    may_differ: Annotated[float, Field(allow_inf_nan=False, gt=0, lt=1)] | None = None
    """Part of the answers that may differ; null for the kind's own."""


class RolloutStart(Spec):
    """The next model of a route, and how it takes over."""

    model: Annotated[str, Field(pattern=NAME)]
    """The next model, which must be loaded, or with `version` another version of the present one."""
    version: str = Field("", pattern=f"^{VERSION.pattern}$")
    policy: str = Field("", pattern=NAME_OR_NONE)
    """RolloutPolicy that has whatever is not given here; empty: none."""
    steps: list[StepView] = Field(default_factory=list, max_length=MAX_STEPS)
    """Weights rise from step to step. After the last one the next model becomes the route's. Empty: the policy's."""
    slower_by: SlowerBy | None = None
    """A request of the next model counts as slow from so many times what is slow for the present one and 2 ms; null: the policy's,
    else 1.1."""
    alpha: Alpha | None = None
    """Chance that the next model is rolled back though it is no worse; null: the policy's, else 0.01."""
    shadow: ShadowView | None = ShadowView()
    """The phase before the first step; null for none. There is none where requests may not be computed twice."""
    agreement: AgreementView | None = None
    """How answers are compared in the shadow; null: by the policy's kind, else they are not."""
    bake_s: Annotated[float, Field(allow_inf_nan=False, ge=0, le=MAX_BAKE_S)] | None = None
    """Seconds for which the present model keeps its copies after the last step, before the next one becomes the route's;
    null: the policy's, else 0."""

    def spec(self, policy: RolloutPolicy | None) -> RolloutSpec:
        """Return what is asked for, completed by the policy. Raises InvalidRequest."""
        gates = policy.gates if policy is not None else GatePolicy()
        steps = tuple(step.step() for step in self.steps) or (policy.steps if policy is not None else ())
        if not steps:
            raise InvalidRequest("a rollout needs steps, or a policy that has them: `tidegate get RolloutPolicy` lists those there are")
        slower_by, alpha = self.slower_by or gates.slower_by, self.alpha or gates.alpha
        shadow = None if self.shadow is None else Step(**self.shadow.model_dump())
        bake_s = self.bake_s if self.bake_s is not None else 0.0 if policy is None else policy.bake_s
        return RolloutSpec(self.model, steps, self.version, slower_by, alpha, shadow, self._agreement(gates), bake_s)

    def _agreement(self, gates: GatePolicy) -> Agreement | None:
        if self.agreement is not None:
            return Agreement(**self.agreement.model_dump())
        return Agreement(gates.agreement) if gates.agreement else None


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
    shadow: ShadowView | None
    agreement: AgreementView | None
    bake_s: float
    copies: int
    """Copies that the present model had when it began; 1 where there is one server."""
    events: list[EventView]
    gates: list[GateView]
    step_samples: int
    """Requests that the next model has computed in this step, each caller or content once."""
    left_s: float | None
    """Seconds until the step has its samples at the present rate; null while there are none."""
    doubt: str
    """Why no step is over though it may have its samples: the gate that fails, by one tenant's requests alone. Else empty."""
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
                "shadow": None if rollout.shadow is None else _shadow_view(rollout.shadow),
                "events": [asdict(event) for event in rollout.events],
                "gates": [asdict(gate) for gate in status.gates],
                "step_samples": status.step_samples,
                "left_s": status.left_s,
                "doubt": status.doubt if rollout.is_under_way else "",
                "resource_version": held.resource_version,
            }
        )

    @app.get("/rollouts", tags=["rollouts"], responses=LIST_ERRORS)
    async def list_rollouts(paging: Paged) -> list[RolloutView]:
        """The last rollout of each route."""
        return [view(held) for held in paging.cut(await rollouts.list_all(paging.part), key=lambda held: held.value.route)]

    @app.get("/rollouts/{name}", tags=["rollouts"], responses=GET_ERRORS)
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

    @app.post("/rollouts/{name}/{verb}", tags=["rollouts"], responses=CHANGE_ERRORS)
    async def change_rollout(name: Name, verb: Verb, by: By) -> RolloutView:
        """Change a rollout that is under way."""
        now_s = rollouts.now_s()
        async with trail.recorded(by, verb.value, "Rollout", name):
            return view(await rollouts.change(name, lambda rollout: _CHANGES[verb](rollout, now_s=now_s, by=by.who)))
