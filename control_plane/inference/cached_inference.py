"""Inference whose answer may be there already, or under way for another: `inference/inference` asks where answers are kept.

A computation belongs to all who wait for it and not to the caller that began it, and takes that caller's permit along: it
goes on when that one leaves. What that caller's own limits or deadline do to it is not passed on to others, who try again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from control_plane.admission.admission import Permit
from control_plane.cache.domain.cached_response import RepeatedRequest
from control_plane.cache.response_cache import CacheScope, ResponseCache
from control_plane.core.infer_call import CacheStatus, InferCall, Outcome
from control_plane.inference.coalescing import Flights
from control_plane.inference.running_request import RunningRequest
from control_plane.objects.domain.route import Route

AnswerT = TypeVar("AnswerT")


class KeepableRequest(Protocol[AnswerT]):
    """A request as a door holds it, and its answer in a form that other callers can be given."""

    def key(self, scope: CacheScope, named: InferCall, version: str) -> bytes | None:
        """Of everything in it that its answer depends on, but for its id; None where a kept answer will not do.

        `named` is what it says, `version` the model's that it is to go to.
        """

    def keep(self, answer: AnswerT) -> bytes | None:
        """The answer without its id; None of an error, and of what cannot be told apart."""

    def restore(self, kept: bytes, status: CacheStatus) -> AnswerT:
        """The answer to this request."""

    def mark(self, answer: AnswerT, status: CacheStatus) -> AnswerT:
        """An answer that was computed, saying so."""

    def outcome(self, answer: AnswerT) -> Outcome:
        """What an answer of Triton's amounts to."""


@dataclass(frozen=True, slots=True)
class _Result(Generic[AnswerT]):
    """What a flight brings home."""

    answer: AnswerT | None
    """As it came; None where level two had it."""
    kept: bytes | None
    """In the form for everybody; None where there is none."""
    request_id: str
    """Of the request that was computed: Triton repeats it, also in the words of errors."""


Compute = Callable[[Any, RunningRequest, Permit, float], Awaitable[Any]]
"""Sends a request when its turn has come, within so many seconds."""


class CachedInference:
    """Looks answers up and coalesces equal requests, for both data ports of one process."""

    def __init__(self, cache: ResponseCache, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is the loop's time."""
        self.cache = cache
        self._flights: Flights[_Result[Any]] = Flights()
        self._now_s = now_s

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """From now on computations can be begun, as tasks of this group."""
        self._flights.begin(tasks)

    def scope(self, model_name: str, route: Route | None, tenant: str) -> CacheScope | None:
        """As `ResponseCache.scope`."""
        return self.cache.scope(model_name, route, tenant)

    def look_again(self, repeated: RepeatedRequest[Any], call: InferCall, route: Route | None, tenant: str) -> bytes | None:
        """What this process has for a request that came before, now to be understood as `call`; without waiting."""
        scope = self.scope(call.model_name, route, tenant)
        if scope is None:
            return None
        if repeated.scope is not scope or repeated.version != call.model_version:
            repeated.scope, repeated.version = scope, call.model_version
            repeated.key = scope.key(repeated.kind, call.model_version.encode(), repeated.identity)
        return self.cache.look(repeated.key)

    def count_hit(self, model: str) -> None:
        """What it looked up again is the answer."""
        self.cache.counts[model, CacheStatus.HIT] += 1

    async def infer(
        self, request: KeepableRequest[AnswerT], running: RunningRequest, scope: CacheScope, *, compute: Compute, timeout_s: float
    ) -> AnswerT:
        """The answer, from wherever it is soonest to be had. Raises what `compute` does, DeadlineExceeded."""
        assert running.call is not None, "it has not been read"
        assert running.named is not None, "it has not been read"
        is_in_it = not (running.call.uses_shared_memory or running.call.sequence_id)  # all that its answer depends on
        key = request.key(scope, running.named, running.call.model_version) if is_in_it else None
        if key is None:
            return self._marked(request, running, await self._alone(request, running, compute, timeout_s), CacheStatus.BYPASS)
        kept = self.cache.look(key)
        if kept is not None:
            return self.restored(request, running, kept, CacheStatus.HIT)
        deadline_s = self._now_s() + timeout_s
        flight = (key, scope.fingerprint)  # the same content loaded again is another: in between there may have been a third
        while self._flights.is_under_way(place := self._flights.place(flight, running)):
            joined = await self._flights.join(place, running, timeout_s=deadline_s - self._now_s())
            if joined is not None and not self._ended_for_its_caller(request, joined):
                return await self._shared(request, running, joined, compute, deadline_s)
        work = partial(self._fly, request, running, scope, key, compute=compute, deadline_s=deadline_s)
        return await self._lead(request, running, place, work)

    async def _lead(
        self,
        request: KeepableRequest[AnswerT],
        running: RunningRequest,
        flight: Hashable,
        work: Callable[[Permit], Awaitable[_Result[AnswerT]]],
    ) -> AnswerT:
        result = await self._flights.lead(flight, running, partial(work, running.hand_over_permit()))
        answer: AnswerT | None = result.answer
        if answer is None:
            return self.restored(request, running, result.kept, CacheStatus.HIT)
        return self._marked(request, running, answer, CacheStatus.MISS)

    async def _fly(
        self,
        request: KeepableRequest[AnswerT],
        running: RunningRequest,
        scope: CacheScope,
        key: bytes,
        permit: Permit,
        *,
        compute: Compute,
        deadline_s: float,
    ) -> _Result[AnswerT]:
        request_id = _id_of(running)
        found = await self.cache.find_shared(scope, key, cost_units=running.units, timeout_s=deadline_s - self._now_s())
        if found is not None:
            return _Result(None, found, request_id)
        began_s = self._now_s()
        answer: AnswerT = await compute(request, running, permit, deadline_s - began_s)
        kept = request.keep(answer)
        if kept is not None:
            self.cache.computed(scope, self._now_s() - began_s, cost_units=running.units)
            self.cache.keep(scope, key, kept, cost_units=self._cost_units(running))
        return _Result(answer, kept, request_id)

    def _ended_for_its_caller(self, request: KeepableRequest[AnswerT], result: _Result[Any]) -> bool:
        """Over gRPC a deadline that has passed is an answer, too."""
        return result.answer is not None and request.outcome(result.answer) is Outcome.DEADLINE_EXCEEDED

    async def _shared(
        self, request: KeepableRequest[AnswerT], running: RunningRequest, result: _Result[Any], compute: Compute, deadline_s: float
    ) -> AnswerT:
        if result.kept is not None:
            return self.restored(request, running, result.kept, CacheStatus.JOINED)
        answer: AnswerT | None = result.answer
        is_error = answer is not None and request.outcome(answer) is not Outcome.ANSWERED
        if answer is not None and is_error and result.request_id == _id_of(running):  # errors tell the id, and are not compressed
            return self._marked(request, running, answer, CacheStatus.JOINED)
        answer = await self._alone(request, running, compute, deadline_s - self._now_s())
        return self._marked(request, running, answer, CacheStatus.MISS)

    async def _alone(self, request: KeepableRequest[AnswerT], running: RunningRequest, compute: Compute, timeout_s: float) -> AnswerT:
        assert running.permit is not None, "it has not been let in"
        answer: AnswerT = await compute(request, running, running.permit, timeout_s)
        return answer

    def restored(self, request: KeepableRequest[AnswerT], running: RunningRequest, kept: bytes | None, status: CacheStatus) -> AnswerT:
        """The answer out of what was kept, which then costs nothing."""
        assert kept is not None, "a flight brings an answer, or one that was kept"
        running.is_cache_hit = True
        self.cache.counts[running.model_name, status] += 1
        return request.restore(kept, status)

    def _marked(self, request: KeepableRequest[AnswerT], running: RunningRequest, answer: AnswerT, status: CacheStatus) -> AnswerT:
        self.cache.counts[running.model_name, status] += 1
        return request.mark(answer, status)

    def _cost_units(self, running: RunningRequest) -> float:
        if running.units is not None:
            return running.units
        return (self._now_s() - (running.sent_s or self._now_s())) * 1e3


def _id_of(running: RunningRequest) -> str:
    return "" if running.call is None else running.call.request_id
