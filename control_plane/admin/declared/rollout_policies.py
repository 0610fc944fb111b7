"""Rollout policies as files and the admin API declare them, and the steps that rollouts have in common with them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from control_plane.admin.schema.views import NAME_OR_NONE, Spec, Whole
from control_plane.objects.domain.rollout import Step
from control_plane.objects.domain.rollout_policy import GatePolicy, RolloutPolicy
from control_plane.objects.domain.route import WHOLE
from control_plane.objects.domain.validation import AGREEMENT, MAX_ALPHA, MAX_BAKE_S, MAX_STEPS

SlowerBy = Annotated[float, Field(allow_inf_nan=False, ge=1, le=1000)]
Alpha = Annotated[float, Field(allow_inf_nan=False, gt=0, le=MAX_ALPHA)]


class StepView(Spec):
    """A step: it is over once so many requests were computed by the next model, in so many seconds at least."""

    weight: Annotated[int, Field(ge=1, lt=WHOLE), Whole]
    """Requests of 10,000 that the next model gets."""
    samples: Annotated[int, Field(ge=1, le=10**9), Whole] = 500
    min_s: Annotated[float, Field(allow_inf_nan=False, ge=0, le=1e7)] = 60.0
    name: str = Field("", pattern=NAME_OR_NONE)
    """What people call it, such as `half`; no two steps have the same. Empty: its number is its name."""

    def step(self) -> Step:
        return Step(**self.model_dump())


class GatesSpec(Spec):
    """Gates of a rollout: the comparisons with the present model that roll the next one back."""

    slower_by: SlowerBy = 1.1
    """A request of the next model counts as slow from so many times what is slow for the present one."""
    alpha: Alpha = 0.01
    """Chance that the next model is rolled back though it is no worse."""
    agreement: Annotated[str, Field(pattern=f"^{AGREEMENT.pattern}$")] = ""
    """Kind of agreement between both models' answers, such as `exact`; empty: answers are not compared. A kind that the
    gateway does not know is refused when a rollout begins."""


class RolloutPolicySpec(Spec):
    """Specification of a rollout policy, by which next models take over: `tidegate rollouts start ROUTE --to MODEL --policy NAME`."""

    steps: list[StepView] = Field(min_length=1, max_length=MAX_STEPS)
    """Weights rise from step to step. After the last one the next model becomes the route's."""
    gates: GatesSpec = GatesSpec()
    bake_s: Annotated[float, Field(allow_inf_nan=False, ge=0, le=MAX_BAKE_S)] = 0.0
    """Seconds after the last step for which the present model stays ready to take all requests back."""

    def named(self, name: str) -> RolloutPolicy:
        gates: dict[str, Any] = self.gates.model_dump()
        return RolloutPolicy(name, tuple(step.step() for step in self.steps), GatePolicy(**gates), self.bake_s)
