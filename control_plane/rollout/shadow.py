"""Shadow of one process: copies answered requests to a rollout's next model, and pairs both answers, or to a route's mirror.

Off the request path: a caller has the answer before the copy is looked at. A copy is sent only where a copy of the model
has nothing to do and the retry budget has room, and is dropped otherwise; it is no request of a tenant's, so it is in
no cache, no usage, no service time, and is never sent twice. Copied are only requests that may be computed twice: no
sequences, no shared memory, no streams. `app/data_plane/data_plane` runs it; observations go the way of all others.

A shadow lasts for minutes and draws its requests; a mirror stays, chooses equal ones alike, and leaves a part of the budget.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from control_plane.auth.access import Access
from control_plane.concurrency.task_owner import TaskOwner
from control_plane.core.errors import ControlPlaneError, InvalidRequest, UpstreamUnavailable
from control_plane.core.infer_call import InferCall
from control_plane.inference.domain.assignment import unit_digest
from control_plane.inference.domain.observation import Observation, Pair
from control_plane.inference.in_flight.running_request import AuthorizedRequest
from control_plane.inference.retries.faults import DEATHS, Fault, fault_in, model_fault_in, model_fault_of_error
from control_plane.inference.retries.retry_budget import RetryBudget, RetryKind
from control_plane.inference.routes.arm_observations import ArmObservations, says_something, tenant_apart
from control_plane.inference.routes.shadowing import MAX_COPIED_BYTES, CopyableRequest, RequestCopy
from control_plane.objects.domain.rollout import Rollout
from control_plane.objects.domain.route import WHOLE, Route
from control_plane.rollout.copy_counts import CopyCounts
from control_plane.rollout.copy_order import CopyOrder, order_of
from control_plane.rollout.domain.agreement import PairJudge
from control_plane.telemetry.request_counts import Copied
from control_plane.triton.ports import Upstream

_log = logging.getLogger(__name__)

MAX_HELD = 64
"""Copies that may wait to be sent."""
MAX_HELD_BYTES = 16 * 2**20
MAX_AT_ONCE = 8
"""Copies that are under way at the same time; of each the request and the original's answer are held."""
MAX_TO_ONE = 4
"""Copies to one model that are under way at the same time: one that is frozen leaves room for others."""
MIRROR_RESERVE = 0.25
"""Part of the retry budget that mirrors leave. At a steady load it is what all servers compute in a second: enough for callers'
requests that a death breaks off, and three quarters of a tenth for copies."""
PAUSE_S = 0.01
"""Time between looks at what is held: by then the caller has the answer."""
STALE_S = 1.0
"""Age at which a copy is dropped: the original was answered long ago, and the route may have another model."""
LEAST_TIMEOUT_S = 3.0
TIMES_STABLE = 10.0
"""A copy that takes longer than this, and so many times as long as stable took, has failed. Triton says only after a
second that a stub has died: what is given up earlier would never count as a death (`domain/deaths`)."""
_AFTER_DEFECT_S = 5.0


class IdleReplicas(Protocol):
    """Source of idle replicas, to which copies are sent: a part of `inference/dispatch/dispatch`."""

    retries: RetryBudget

    def idle_replica(self, call: InferCall) -> AbstractContextManager[Upstream] | None:
        """Reserve a replica of the model that has nothing to do; None if there is none."""


@dataclass(frozen=True, slots=True)
class _Held:
    """An answered request that is to be copied."""

    order: CopyOrder
    copy: RequestCopy
    call: InferCall
    """The call as it goes to the other model."""
    answer: Any
    """Stable's."""
    stable_is_fault: bool
    digest: int
    tenant: str
    units: float
    took_s: float
    at_s: float

    @property
    def size_bytes(self) -> int:
        return self.copy.size_bytes + _answer_bytes(self.answer)


class ShadowCopies:
    """Sender of copies to next models of rollouts and to mirrors; implements `inference/routes/shadowing.Shadow`."""

    def __init__(
        self,
        access: Access,
        dispatch: IdleReplicas,
        observations: ArmObservations,
        *,
        is_idle: Callable[[str], bool] = lambda model: True,
        now_s: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`is_idle` tells whether no caller's request is under way for a model. `now_s` is the loop's time; `draw` returns a
        number of [0, 1)."""
        self.counts = CopyCounts()
        self._access = access
        self._dispatch = dispatch
        self._observations = observations
        self._is_idle = is_idle
        self._now_s = now_s
        self._draw = draw
        self._held = deque[_Held]()
        self._held_bytes = 0
        self._under_way: Counter[str] = Counter()
        """Copies under way, by the model that they are sent to."""
        self._judges: dict[str, PairJudge | None] = {}
        """Judges of the rollouts in their shadow, by id."""
        self._tasks = TaskOwner("requests cannot be copied")
        self._has_some = asyncio.Event()

    def offer(self, route: Route, request: CopyableRequest, running: AuthorizedRequest, answer: Any) -> None:
        order = order_of(self._access, route)
        if order is None or not _may_be_copied(running) or not self._chooses(order, request, running.call):
            return
        fault = model_fault_in(answer)
        # What its caller has done wrong says nothing; of what broke off or ran late nobody knows what it does elsewhere.
        if fault not in (None, Fault.OTHER) or (fault is None and fault_in(answer) is not None):
            return
        if max(request.body_bytes(), _answer_bytes(answer)) > MAX_COPIED_BYTES:
            self.counts.add(order, Copied.TOO_LARGE)
        elif not self._tasks.is_open or len(self._held) >= MAX_HELD or self._held_bytes >= MAX_HELD_BYTES:
            self.counts.add(order, Copied.DROPPED)
        else:
            self._hold(order, request, running, answer, tenant=tenant_apart(route, running.principal.tenant), is_fault=fault is not None)

    async def run(self) -> None:
        """Send what is held until cancelled."""
        async with self._tasks.open():
            while True:
                await self._has_some.wait()
                await asyncio.sleep(PAUSE_S)
                try:
                    self.tick()
                except Exception:  # a defect here must not end the data plane
                    _log.exception("requests are not copied for %g s", _AFTER_DEFECT_S)
                    self._forget()
                    await asyncio.sleep(_AFTER_DEFECT_S)

    def tick(self) -> None:
        """Send those that can be sent now, and drop the rest."""
        while self._held and self._under_way.total() < MAX_AT_ONCE:
            held = self._held.popleft()
            self._held_bytes -= held.size_bytes
            self._send(held)
        if not self._held:
            self._has_some.clear()

    def _chooses(self, order: CopyOrder, request: CopyableRequest, call: InferCall) -> bool:
        if order.rollout is not None:  # drawn, so that it also has its samples where few requests differ
            return self._draw() * WHOLE < order.weight
        return order.chooses(request.unit(call))

    def _hold(
        self, order: CopyOrder, request: CopyableRequest, running: AuthorizedRequest, answer: Any, *, tenant: str, is_fault: bool
    ) -> None:
        now_s, call = self._now_s(), running.call
        held = _Held(
            order,
            request.copy_for(order.model, order.version),
            replace(call, model_name=order.model, model_version=order.version),
            answer,
            is_fault,
            # Not the unit of its arm: a caller whose requests were copied still counts once in the steps.
            0 if order.rollout is None else unit_digest(f"{order.rollout.id}#shadow", *request.unit(call)),
            tenant,
            running.expected_units,
            now_s - (running.sent_s or now_s),
            now_s,
        )
        self._held.append(held)
        self._held_bytes += held.size_bytes
        self._has_some.set()

    def _send(self, held: _Held) -> None:
        """Begin to send a copy, or drop it."""
        order, model = held.order, held.order.model
        if self._now_s() - held.at_s > STALE_S or not order.is_same(order_of(self._access, self._access.route(order.route))):
            self.counts.add(order, Copied.DROPPED)
            return
        is_full = self._under_way[model] >= MAX_TO_ONE
        place = None if is_full or not self._is_idle(model) else self._dispatch.idle_replica(held.call)
        reserve = MIRROR_RESERVE if order.rollout is None else 0.0
        if place is None:
            self.counts.add(order, Copied.BUSY)
        elif not self._dispatch.retries.try_spend(held.units, RetryKind.MIRROR, reserve=reserve):
            with place:  # gives the reservation back
                self.counts.add(order, Copied.OVER_BUDGET)
        else:
            self._under_way[model] += 1
            try:
                self._tasks.create_task(self._compare(held, place), name="shadow-copy")
            except UpstreamUnavailable:  # the gateway is stopping
                self._has_ended(model)
                with place:
                    self.counts.add(order, Copied.DROPPED)

    def _has_ended(self, model: str) -> None:
        self._under_way[model] -= 1
        if not self._under_way[model]:
            del self._under_way[model]

    async def _compare(self, held: _Held, place: AbstractContextManager[Upstream]) -> None:
        """Send a copy, and observe what became of it."""
        began_s, answer = self._now_s(), None
        try:
            with place as server:
                try:
                    answer = await held.copy.send(server, timeout_s=max(LEAST_TIMEOUT_S, TIMES_STABLE * held.took_s))
                    fault = model_fault_in(answer)
                except ControlPlaneError as exc:
                    fault = model_fault_of_error(exc)
            self._observe(held, fault, answer, self._now_s() - began_s)
        except Exception:  # what cannot be compared must not end the data plane
            _log.exception("the answer to a copied request cannot be compared")
            self.counts.add(held.order, Copied.UNREADABLE)
        finally:
            self._has_ended(held.order.model)

    def _observe(self, held: _Held, fault: Fault | None, answer: Any, took_s: float) -> None:
        if not says_something(fault):
            self.counts.add(held.order, Copied.UNCOUNTED)
            return
        is_refused = fault is None and fault_in(answer) is not None  # as its caller's mistake, which stable had not found
        pair = Pair(held.stable_is_fault)
        if fault is None and not is_refused and not held.stable_is_fault:
            pair = replace(pair, differs=self._differ(held, answer))
            if held.copy.is_whole:
                self.counts.add_pair(held.order, original_s=held.took_s, copy_s=took_s)
        is_fault = fault is not None or (is_refused and not held.stable_is_fault)
        self.counts.add(held.order, _copied(is_fault=is_fault, differs=pair.differs))
        if (rollout := held.order.rollout) is not None:
            seen = Observation(rollout.route, rollout.id, False, held.digest, is_fault, took_s, fault in DEATHS, pair, held.tenant)
            self._observations.add_pair(seen)

    def _differ(self, held: _Held, answer: Any) -> bool | None:
        judge = None if held.order.rollout is None else self._judge(held.order.rollout)
        if judge is None:
            return None
        try:
            stable = held.copy.outputs(held.answer)
        except InvalidRequest:
            return None  # such as a compressed answer, or a data type that NumPy lacks
        if stable is None:
            return None
        try:
            outputs = held.copy.outputs(answer)
        except InvalidRequest:
            return True
        agree = None if outputs is None else judge.agree(stable, outputs)
        return None if agree is None else not agree

    def _judge(self, rollout: Rollout) -> PairJudge | None:
        if rollout.id not in self._judges:
            try:
                self._judges = {rollout.id: None if rollout.agreement is None else PairJudge(rollout.agreement)} | {
                    each: judge for each, judge in self._judges.items() if each in self._access.shadow_ids
                }
            except InvalidRequest as exc:  # another version of the gateway has begun it
                self._judges[rollout.id] = None
                _log.error("rollout of %s: answers are not compared: %s", rollout.route, exc)
        return self._judges[rollout.id]

    def _forget(self) -> None:
        self._held.clear()
        self._held_bytes = 0
        self._has_some.clear()


def _may_be_copied(running: AuthorizedRequest) -> bool:
    """Whether a request was computed just now, and may be computed twice."""
    call = running.call
    return (
        running.sent_s is not None
        and not running.is_cache_hit
        and running.is_repeatable
        and not (call.sequence_id or call.uses_shared_memory or call.classified)
    )


def _answer_bytes(answer: Any) -> int:
    body = getattr(answer, "body", b"")
    return sum(map(len, body)) if isinstance(body, tuple) else len(body)


def _copied(*, is_fault: bool, differs: bool | None) -> Copied:
    if is_fault:
        return Copied.FAILED
    return Copied.ANSWERED if differs is None else Copied.DIFFERS if differs else Copied.AGREES
