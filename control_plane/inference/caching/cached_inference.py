"""Response caching and request coalescing in front of inference; `inference/inference` calls it for cacheable
models.

A computation (a *flight*, led by the first caller) belongs to all callers that wait for it. It takes over the
leader's permit, so it continues when the leader disconnects. Where the leader's own limits or deadline end
it, the followers are not failed with the leader's error but try again. This module knows no protocol: the
frontend's request object makes keys and encodes answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from control_plane.admission.permit import Permit
from control_plane.cache.keys import CacheScope
from control_plane.cache.response_cache import ResponseCache
from control_plane.core.infer_call import CacheStatus, InferCall, Outcome
from control_plane.inference.caching.singleflight import Singleflight
from control_plane.inference.in_flight.running_request import AuthorizedRequest

AnswerT = TypeVar("AnswerT")


class CacheableRequest(Protocol[AnswerT]):
    """A cacheable request as its frontend holds it: makes the cache key, and encodes its answer for other
    callers."""

    def key(self, scope: CacheScope, call: InferCall) -> bytes | None:
        """The cache key: everything that the answer depends on, without the request's id; None bypasses the
        cache.

        `call` is the call as it goes to Triton.
        """

    def encode_answer(self, answer: AnswerT) -> bytes | None:
        """Encode the answer for the cache, without the request's id; None for errors, and where the id cannot
        be found."""

    def decode_answer(self, encoded: bytes, status: CacheStatus) -> AnswerT:
        """Decode a cached answer into the answer to this request, with this request's id."""

    def mark(self, answer: AnswerT, status: CacheStatus) -> AnswerT:
        """Add the cache status to an answer that Triton computed."""

    def keep_verbatim(self, call: InferCall, key: bytes, answer: AnswerT) -> None:
        """Keep the answer to this hit on level one (entry `key`) for the verbatim cache, if the request suits
        that.

        `call` is the call as it goes to Triton.
        """

    def outcome(self, answer: AnswerT) -> Outcome:
        """The outcome that Triton's answer amounts to, for metrics and metering."""


@dataclass(frozen=True, slots=True)
class _Result(Generic[AnswerT]):
    """Result of one flight, shared by its leader and its followers."""

    answer: AnswerT | None
    """Triton's answer to the leader; None where level two of the cache had the answer."""
    encoded: bytes | None
    """The answer encoded for any caller; None where the answer cannot be shared in that form."""
    request_id: str
    """The leader's request id: Triton repeats it in the answer, and in the text of errors too."""
    is_late: bool = False
    """Whether the answer came after the leader's deadline, of which models may be told: an error then says so in their words."""


Compute = Callable[[Any, AuthorizedRequest, Permit, float], Awaitable[Any]]
"""Waits for the request's turn and sends it to Triton; the last argument is the time that is left, in
seconds."""


class CachedInference:
    """Read-through response cache with request coalescing, for both data ports of one process."""

    def __init__(self, cache: ResponseCache, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is the loop's time."""
        self.cache = cache
        self._singleflight: Singleflight[_Result[Any]] = Singleflight()
        self._now_s = now_s

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Allow computations from now on; each runs as a task of this group."""
        self._singleflight.begin(tasks)

    async def infer(
        self, request: CacheableRequest[AnswerT], running: AuthorizedRequest, scope: CacheScope, *, compute: Compute, timeout_s: float
    ) -> AnswerT:
        """Answer from level one, from a flight under way, from level two, or from Triton, in that order.

        Cancelling it leaves the flight to the followers, if there are any. Raises what `compute` raises,
        DeadlineExceeded.
        """
        # The answer then depends on the request's bytes alone: not on a memory region, nor on earlier
        # requests of a sequence.
        depends_on_request_only = not (running.call.uses_shared_memory or running.call.sequence_id)
        key = request.key(scope, running.call) if depends_on_request_only else None
        if key is None:
            return self._marked(request, running, await self._alone(request, running, compute, timeout_s), CacheStatus.BYPASS)
        encoded = self.cache.get_local(key)
        if encoded is not None:
            answer = self._decoded(request, running, encoded, CacheStatus.HIT)
            # Equal bytes later are to ask the model that they are assigned to, and no other request has a trace's.
            if not running.is_diverted and running.trace is None:
                request.keep_verbatim(running.call, key, answer)
            return answer
        deadline_s = self._now_s() + timeout_s
        # The same contents loaded again get another fingerprint object: other contents may have been loaded
        # in between. Callers join no flight of work in the background, which they interrupt or hold up themselves.
        computation = (key, scope.fingerprint, running.permit.is_in_background)
        # A loop, not an `if`: while this request waited, another follower may have become the leader of a new
        # flight.
        while self._singleflight.is_under_way(flight := self._singleflight.key_for(computation, running)):
            left_s = deadline_s - self._now_s()
            joined = await self._singleflight.join(
                flight, running, timeout_s=left_s, is_leaders_own=partial(_ended_for_its_caller, request)
            )
            if joined is not None:
                return await self._shared(request, running, joined, compute, deadline_s)
        work = partial(self._find_or_compute, request, running, scope, key, compute=compute, deadline_s=deadline_s)
        return await self._lead(request, running, flight, work)

    async def _lead(
        self,
        request: CacheableRequest[AnswerT],
        running: AuthorizedRequest,
        flight: Hashable,
        work: Callable[[Permit], Awaitable[_Result[AnswerT]]],
    ) -> AnswerT:
        # The permit moves to the flight: given back with the leader's request, it would admit another request
        # while this one is still being computed for the followers.
        result = await self._singleflight.lead(flight, running, partial(work, running.transfer_permit()))
        answer: AnswerT | None = result.answer
        if answer is None:
            return self._decoded(request, running, result.encoded, CacheStatus.HIT)
        return self._marked(request, running, answer, CacheStatus.MISS)

    async def _find_or_compute(
        self,
        request: CacheableRequest[AnswerT],
        running: AuthorizedRequest,
        scope: CacheScope,
        key: bytes,
        permit: Permit,
        *,
        compute: Compute,
        deadline_s: float,
    ) -> _Result[AnswerT]:
        """Answer from level two of the cache, or have Triton compute it: the body of a flight."""
        request_id = running.call.request_id
        found = await self.cache.find_shared(scope, key, cost_units=running.units, timeout_s=deadline_s - self._now_s())
        if found is not None:
            return _Result(None, found, request_id)
        began_s = self._now_s()
        answer: AnswerT = await compute(request, running, permit, deadline_s - began_s)
        encoded = request.encode_answer(answer)
        if encoded is not None:
            self.cache.record_compute_time(scope, self._now_s() - began_s, cost_units=running.units)
            self.cache.put(scope, key, encoded, cost_units=self._cost_units(running))
        return _Result(answer, encoded, request_id, is_late=self._now_s() >= deadline_s)

    async def _shared(
        self, request: CacheableRequest[AnswerT], running: AuthorizedRequest, result: _Result[Any], compute: Compute, deadline_s: float
    ) -> AnswerT:
        if result.encoded is not None:
            return self._decoded(request, running, result.encoded, CacheStatus.JOINED)
        answer: AnswerT | None = result.answer
        is_error = answer is not None and request.outcome(answer) is not Outcome.ANSWERED
        # An error can be shared as it is only with a request of the same id, since its text contains that id.
        # Errors are never compressed, so they suit every caller's Accept-Encoding.
        if answer is not None and is_error and result.request_id == running.call.request_id:
            return self._marked(request, running, answer, CacheStatus.JOINED)
        answer = await self._alone(request, running, compute, deadline_s - self._now_s())
        return self._marked(request, running, answer, CacheStatus.MISS)  # the flight's answer could not be shared

    async def _alone(self, request: CacheableRequest[AnswerT], running: AuthorizedRequest, compute: Compute, timeout_s: float) -> AnswerT:
        answer: AnswerT = await compute(request, running, running.permit, timeout_s)
        return answer

    def _decoded(
        self, request: CacheableRequest[AnswerT], running: AuthorizedRequest, encoded: bytes | None, status: CacheStatus
    ) -> AnswerT:
        """Decode a cached answer for this request, and mark the request as a hit, which is not charged."""
        assert encoded is not None, "a flight ends with an answer or with a cached one"
        running.is_cache_hit = True
        if running.trace is not None:
            running.trace.cache = status
        self.cache.counts[running.model_name, status] += 1
        return request.decode_answer(encoded, status)

    def _marked(self, request: CacheableRequest[AnswerT], running: AuthorizedRequest, answer: AnswerT, status: CacheStatus) -> AnswerT:
        if running.trace is not None:
            running.trace.cache = status
        self.cache.counts[running.model_name, status] += 1
        return request.mark(answer, status)

    def _cost_units(self, running: AuthorizedRequest) -> float:
        if running.units is not None:
            return running.units
        # Nothing is known of the model's cost. One compute unit is 1 ms of computing, so the time at Triton
        # stands in.
        return (self._now_s() - (running.sent_s or self._now_s())) * 1e3


def _ended_for_its_caller(request: CacheableRequest[Any], result: _Result[Any]) -> bool:
    """Whether the flight ended by its leader's deadline; over gRPC, and from models that know it, that is an answer (a status),
    not an exception."""
    if result.answer is None:
        return False
    ended = request.outcome(result.answer)
    return ended is Outcome.DEADLINE_EXCEEDED or (result.is_late and ended is not Outcome.ANSWERED)
