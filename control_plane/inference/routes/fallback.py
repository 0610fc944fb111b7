"""Fallback of routes with several models: the route's own model answers what another of its models has failed.

Each request that a route with targets has assigned goes through it, from `inference/inference`, `embeddings/embeddings` and the
frontends' streams.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from control_plane.inference.domain.retry_budget import SHARE
from control_plane.inference.in_flight.running_request import AuthorizedRequest
from control_plane.inference.retries.faults import FAULTS, Fault, Resend, is_success, model_fault
from control_plane.inference.retries.retry_budget import RetryBudget
from control_plane.inference.routes.arm_observations import ArmObservations
from control_plane.inference.routes.budget_dial import BudgetDial
from control_plane.inference.routes.targets import Arm
from control_plane.objects.domain.route import WHOLE

AnswerT = TypeVar("AnswerT")

Ask = Callable[[float], Awaitable[AnswerT]]
"""Asks the request's model for the answer, which may take so many seconds."""
Divert = Callable[[float], Awaitable[float]]
"""Turns the request to the route's own model within so many seconds, and returns how many of them are left."""

_MAX_OWED = 20
"""Requests that the retry budget may owe for those that a route's own model answers in place of a target."""


class TargetFallback:
    """Fallback from a route's targets to its own model; also tells what became of each request to those that judge by it."""

    def __init__(self, observations: ArmObservations, dial: BudgetDial, retries: RetryBudget, *, now_s: Callable[[], float]) -> None:
        """Rollouts judge by `observations`, routes with latency budgets by the `dial`. `now_s` is the loop's time."""
        self._observations = observations
        self._dial = dial
        self._retries = retries
        self._now_s = now_s

    async def answer(self, arm: Arm, running: AuthorizedRequest, deadline_s: float, *, ask: Ask[AnswerT], divert: Divert) -> AnswerT:
        """Have the model of the request's arm answer it by `ask`, and after that one's fault the route's own model, to which `divert`
        turns the request first. Raises as they do."""
        try:
            answer = await ask(deadline_s - self._now_s())
        except Exception as exc:
            if not self.observe_and_may_fall_back(arm, exc, running, deadline_s):
                raise
        else:
            if not self.observe_and_may_fall_back(arm, answer, running, deadline_s):
                return answer
        return await ask(await divert(deadline_s - self._now_s()))

    def observe_and_may_fall_back(self, arm: Arm, came: object, running: AuthorizedRequest, deadline_s: float) -> bool:
        """Observe what came of a request, an answer or an error, and return whether the route's own model is to answer it after
        a fault of another, which is then taken from the retry budget. Without a fault it is never to."""
        now_s, fault = self._now_s(), model_fault(came)
        self._observations.add(arm, running, fault, now_s=now_s)
        if arm.by_budget is not None and not running.is_cache_hit and (fault is Fault.TIMED_OUT or is_success(came)):
            took_s, has_expired = now_s - running.started_s, fault is Fault.TIMED_OUT
            self._dial.answered(arm.route.name, arm.name, arm.by_budget, took_s=took_s, has_expired=has_expired)
        if fault is None or arm.is_stable or not arm.is_assigned or fault is Fault.TIMED_OUT or running.is_computed_in_part:
            return False
        policy = FAULTS[fault]
        is_repeatable = running.is_repeatable and not running.call.sequence_id
        if (policy.resend is not Resend.ALWAYS and not is_repeatable) or running.has_flight or now_s >= deadline_s:
            return False
        if not policy.is_budgeted:
            return True
        # A target that gets no more than the budget's part cannot exceed it for long, however it fails; at first it can.
        may_owe = arm.weight <= SHARE * WHOLE and self._retries.owed_requests < _MAX_OWED
        return self._retries.try_spend(running.expected_units, may_owe=may_owe)
