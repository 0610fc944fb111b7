"""Embeddings service: answers each text of a call from the cache, and computes the missing ones together.

For callers who send texts, not tensors (`frontends/openai`). Each text is cached by itself, so any earlier
call may have computed a part of this one. Calls that lack the same texts at the same time share one
computation (`inference/caching/singleflight`): a task that holds the leader's permit and goes on when the leader's
caller leaves. An error from the leader's own limits or deadline is not passed on to the followers, who try
again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from control_plane.admission.permit import Permit
from control_plane.cache.keys import CacheScope
from control_plane.cache.response_cache import ResponseCache
from control_plane.concurrency.run_steps import run_in_steps
from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import DeadlineExceeded, InvalidRequest, UpstreamUnavailable
from control_plane.core.infer_call import CacheStatus, Frontend, InferCall, Outcome
from control_plane.core.principal import Principal
from control_plane.core.tensor import Tensor
from control_plane.embeddings.copies import MAX_TEXTS, CopyableEmbeddings
from control_plane.embeddings.dispatched_batches import DispatchedBatches, PartOf
from control_plane.embeddings.domain.embedding_tensors import EmbeddedText, read_embedded_text
from control_plane.embeddings.domain.openai_request import EmbeddingsRequest
from control_plane.embeddings.domain.text_model import TextModel
from control_plane.embeddings.text_batches import MAX_BATCHES_IN_FLIGHT, TextBatches
from control_plane.embeddings.text_models import TextModels
from control_plane.inference.caching.singleflight import Singleflight
from control_plane.inference.in_flight.running_request import AuthorizedRequest, RunningRequest
from control_plane.inference.in_flight.unparsed_request import UnparsedRequest
from control_plane.inference.inference import InferenceService
from control_plane.inference.requests import SendableOn
from control_plane.inference.routes.targets import Arm, Assignee
from control_plane.objects.domain.route import Route, timeout_s_of
from control_plane.protocols.http1 import HttpAnswer
from control_plane.telemetry.tracing import TRACEPARENT

_TEXTS_PER_STEP, _BYTES_PER_STEP = 128, 2**20
"""Looking up or storing this much takes about 1 ms; then the event loop gets a turn."""


class EmbeddingsCall(UnparsedRequest, Assignee, Protocol):
    """An embeddings request as its frontend holds it."""

    frontend: Frontend
    principal: Principal

    @property
    def timeout_s(self) -> float | None:
        """The caller's timeout in seconds; None where the caller gives none. Raises InvalidRequest."""

    @property
    def accepts_cached_answers(self) -> bool:
        """Whether the caller accepts cached embeddings."""

    def read(self) -> Steps[EmbeddingsRequest]:
        """Parse and validate the body, in steps if it is large. Raises InvalidRequest, ModelNotFound."""


@dataclass(frozen=True, slots=True)
class EmbeddingsAnswer:
    """The answer to one embeddings call."""

    rows: tuple[EmbeddedText, ...]
    """One row for each input, in the order of the inputs."""
    wanted: EmbeddingsRequest
    model: str
    """The model that computed the rows; the call may have named a route instead."""
    status: CacheStatus | None
    """None where the model's answers are not cached."""
    hits: int
    """Inputs that were in the cache, not computed for this call or for the flight that it joined."""


class SendableEmbeddingsCall(EmbeddingsCall, SendableOn[EmbeddingsAnswer | HttpAnswer], Protocol):
    """An embeddings request that another region may answer."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """One authorised call."""

    wanted: EmbeddingsRequest
    running: AuthorizedRequest
    route: Route | None
    arm: Arm | None
    """The model among a route's several that is to embed the inputs."""
    timeout_s: float
    takes_cached: bool
    """Whether the caller accepts cached embeddings."""


@dataclass(frozen=True, slots=True)
class _Computation:
    """One call after routing: what to compute, with which model, and until when."""

    call: InferCall
    text_model: TextModel
    are_tokens: bool
    running: AuthorizedRequest
    deadline_s: float

    def costing(self, inputs: Sequence[bytes]) -> InferCall:
        """A call to the same model that costs as much as computing the embeddings of `inputs`."""
        return _call(self.call.model_name, self.call.model_version, inputs, are_tokens=self.are_tokens)


@dataclass(frozen=True, slots=True)
class _FlightResult:
    """Result of one flight, shared by its leader and its followers."""

    rows: list[EmbeddedText]
    computed: frozenset[int]
    """Indices of the rows that had to be computed; level two of the cache had the others."""


class Embeddings:
    """Application service for embeddings calls: looks each text up, computes the rest, and records the
    call."""

    def __init__(
        self,
        *,
        inference: InferenceService,
        models: TextModels,
        cache: ResponseCache,
        default_timeout_s: float,
        part_of: PartOf,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`part_of` makes the requests to parts of sharded models, which only a fleet has. `now_s` is the loop's time."""
        self._inference = inference
        self._models = models
        self._cache = cache
        self._default_timeout_s = default_timeout_s
        self._part_of = part_of
        self._now_s = now_s
        self._singleflight: Singleflight[_FlightResult] = Singleflight()

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Allow computations from now on; each runs as a task of this group."""
        self._singleflight.begin(tasks)

    async def embed(self, request: EmbeddingsCall) -> EmbeddingsAnswer:
        """Embed the inputs of a call. Cancelling it cancels the computation, unless other calls wait for it.

        Raises:
            InvalidRequest, ModelNotFound, PermissionDenied, LimitExceeded, Overloaded, DeadlineExceeded,
            UpstreamUnavailable, UpstreamFailed.
        """
        with self._begin(request) as begun:
            asked = await self._authorize(request, begun)
            return self._answered(asked, await self._embed(asked, asked.timeout_s))

    async def embed_anywhere(self, request: SendableEmbeddingsCall) -> EmbeddingsAnswer | HttpAnswer:
        """Embed as `embed` does, or have another region answer the call, whose answer is then returned."""
        with self._begin(request) as begun:
            asked = await self._authorize(request, begun)
            failover = self._inference.region_failover
            if failover is None:
                return self._answered(asked, await self._embed(asked, asked.timeout_s))
            running, here = asked.running, partial(self._embed, asked)
            embedded: EmbeddingsAnswer | HttpAnswer = await failover.answer(request, running, asked.timeout_s, here)
            if isinstance(embedded, HttpAnswer):
                running.outcome = Outcome.ANSWERED
                return embedded
            return self._answered(asked, embedded)

    def _begin(self, request: EmbeddingsCall) -> RunningRequest:
        begun = self._inference.running.begin(request.frontend, request.principal, request)
        if self._inference.tracer is not None:
            begun.trace = self._inference.tracer.begin(request.field(TRACEPARENT))
        return begun

    async def _authorize(self, request: EmbeddingsCall, begun: RunningRequest) -> _Asked:
        """Admit, read and authorise a call. Raises as `embed` does."""
        # Admission comes before parsing: a caller over its limits must not cost the time to read its
        # body.
        admitted = begun.admit() or await begun.admit_when_synced()
        wanted = await run_in_steps(request.read())
        admitted.model_name = wanted.model
        named = _call(wanted.model, "", wanted.inputs, are_tokens=wanted.are_tokens)
        call, route, arm = self._inference.resolve(named, request.principal, request)
        running = admitted.authorize(call, named=wanted.model)
        running.is_repeatable = True  # an embedding is a function of its text
        timeout_s = timeout_s_of(route, asked_s=request.timeout_s, default_s=self._default_timeout_s)
        return _Asked(wanted, running, route, arm, timeout_s, takes_cached=request.accepts_cached_answers)

    def _answered(self, asked: _Asked, embedded: EmbeddingsAnswer) -> EmbeddingsAnswer:
        """Note a call's answer, and offer it to be copied to another model if that is wanted."""
        arm, shadow, running = asked.arm, self._inference.shadow, asked.running
        if asked.route is not None and shadow is not None and embedded.rows and (arm is None or arm.is_stable):
            call = CopyableEmbeddings(self._models, running.call, asked.wanted.inputs, asked.wanted.are_tokens)
            shadow.offer(asked.route, call, running, embedded.rows[:MAX_TEXTS])
        running.outcome = Outcome.ANSWERED
        self._count(embedded)
        return embedded

    def _embed(self, asked: _Asked, left_s: float) -> Awaitable[EmbeddingsAnswer]:
        """Embed all inputs, by the model that a route's target is where it has any; the route's own model stands in for one that
        fails."""
        arm, deadline_s = asked.arm, self._now_s() + left_s
        if arm is None:
            return self._embed_by(asked, asked.route, deadline_s)

        def embed(left_s: float) -> Awaitable[EmbeddingsAnswer]:
            return self._embed_by(asked, arm.route, deadline_s)

        async def divert(left_s: float) -> float:
            asked.running.divert(arm.stable)
            return left_s

        return self._inference.fallback.answer(arm, asked.running, deadline_s, ask=embed, divert=divert)

    async def _embed_by(self, asked: _Asked, route: Route | None, deadline_s: float) -> EmbeddingsAnswer:
        """Embed all inputs by the model of the call as it goes to Triton now."""
        wanted, running, call = asked.wanted, asked.running, asked.running.call
        text_model = await self._models.describe(call.model_name, call.model_version, timeout_s=self._left_s(deadline_s))
        _check(wanted, text_model)
        work = _Computation(call, text_model, wanted.are_tokens, running, deadline_s)
        scope = self._cache.scope(call.model_name, route, running.principal.tenant)
        if scope is not None and asked.takes_cached:
            return await self._found_or_computed(work, wanted, scope)
        return await self._computed(work, wanted, None if scope is None else CacheStatus.BYPASS)

    async def _computed(self, work: _Computation, wanted: EmbeddingsRequest, status: CacheStatus | None) -> EmbeddingsAnswer:
        inputs = [*dict.fromkeys(wanted.inputs)]  # each text once, in order, however often the call repeats it
        rows = dict(zip(inputs, await self._compute(work, inputs, work.running.permit), strict=True))
        return EmbeddingsAnswer(tuple([rows[each] for each in wanted.inputs]), wanted, work.call.model_name, status, 0)

    async def _found_or_computed(self, work: _Computation, wanted: EmbeddingsRequest, scope: CacheScope) -> EmbeddingsAnswer:
        keys, rows = await run_in_steps(self._look_steps(work, wanted, scope))
        missing = [each for each, row in rows.items() if row is None]
        status, computed = CacheStatus.HIT, frozenset[bytes]()
        if missing:
            result, status = await self._share(work, scope, missing, [keys[each] for each in missing])
            rows.update(zip(missing, result.rows, strict=True))
            computed = frozenset(missing[number] for number in result.computed)
        work.running.is_cache_hit = status is not CacheStatus.MISS
        answer = [row for each in wanted.inputs if (row := rows[each]) is not None]  # no row is None any more: for mypy
        hits = len(answer) - sum(each in computed for each in wanted.inputs)
        return EmbeddingsAnswer(tuple(answer), wanted, work.call.model_name, status, hits)

    def _look_steps(
        self, work: _Computation, wanted: EmbeddingsRequest, scope: CacheScope
    ) -> Steps[tuple[dict[bytes, bytes], dict[bytes, EmbeddedText | None]]]:
        """The cache key of each distinct input, and its row where level one has it (None where not)."""
        keys, rows = dict[bytes, bytes](), dict[bytes, EmbeddedText | None]()
        version, kind = work.call.model_version.encode(), b"tokens" if wanted.are_tokens else b"text"
        texts = size = 0
        for each in wanted.inputs:
            if each not in keys:
                key = keys[each] = scope.key(b"embedding", version, kind, each)
                rows[each] = self._row_of(self._cache.get_local(key), work)
                size += len(each)
            texts += 1
            if texts >= _TEXTS_PER_STEP or size >= _BYTES_PER_STEP:
                texts = size = 0
                yield
        return keys, rows

    async def _share(
        self, work: _Computation, scope: CacheScope, inputs: list[bytes], keys: list[bytes]
    ) -> tuple[_FlightResult, CacheStatus]:
        """Get the rows that level one lacks: lead a flight for them, or join the one of an equal call."""
        # By all keys together: calls that lack only partly the same texts compute those twice.
        computation = (scope.key(b"embeddings", *keys), scope.fingerprint)
        while self._singleflight.is_under_way(flight := self._singleflight.key_for(computation, work.running)):
            joined = await self._singleflight.join(flight, work.running, timeout_s=self._left_s(work.deadline_s))
            if joined is not None:
                return joined, CacheStatus.JOINED
        permit = work.running.transfer_permit()
        result = await self._singleflight.lead(flight, work.running, lambda: self._find_or_compute(work, scope, inputs, keys, permit))
        return result, CacheStatus.MISS if result.computed else CacheStatus.HIT

    async def _find_or_compute(
        self, work: _Computation, scope: CacheScope, inputs: list[bytes], keys: list[bytes], permit: Permit
    ) -> _FlightResult:
        left_s = self._left_s(work.deadline_s)
        # Level one is asked again, too: another call may have computed some of the texts since `_look_steps`.
        entries = await self._cache.get_many(scope, keys, cost_units=work.running.units, timeout_s=left_s)
        found = [self._row_of(entry, work) for entry in entries]
        missing = [number for number, row in enumerate(found) if row is None]
        if missing:
            began_s = self._now_s()
            computed = await self._compute(work, [inputs[number] for number in missing], permit)
            self._cache.record_compute_time(scope, self._now_s() - began_s, cost_units=work.running.units)
            units = work.running.units if work.running.units is not None else (self._now_s() - began_s) * 1e3
            for count, (number, row) in enumerate(zip(missing, computed, strict=True)):
                found[number] = row
                self._cache.put(scope, keys[number], row.to_bytes(), cost_units=units / len(missing))
                if count % _TEXTS_PER_STEP == _TEXTS_PER_STEP - 1:  # storing thousands of rows must not block the loop
                    await asyncio.sleep(0)
        return _FlightResult([row for row in found if row is not None], frozenset(missing))

    async def _compute(self, work: _Computation, inputs: Sequence[bytes], permit: Permit) -> list[EmbeddedText]:
        """Compute the rows of `inputs`, all distinct, when the model has a slot; the call is charged for
        these alone."""
        running = work.running
        running.estimate_cost(work.costing(inputs))
        await self._inference.wait_for_slot(running, permit, self._left_s(work.deadline_s))
        if self._inference.time_left is not None:
            self._inference.time_left.tell(permit, work.call.model_name)
        try:
            with self._sender(work) as sender:
                batches = TextBatches(
                    sender, work.call, work.text_model, work.are_tokens, lambda: self._left_s(work.deadline_s), permit, permit.yields
                )
                return await batches.compute(inputs)
        except UpstreamUnavailable:
            # Raises DeadlineExceeded where that is over, which equal requests with more time do not share: a model that is told
            # the deadline answers with an error of its own by then.
            self._left_s(work.deadline_s)
            raise

    def _sender(self, work: _Computation) -> DispatchedBatches:
        return DispatchedBatches(self._inference, work.running, self._part_of, work.costing, at_once=MAX_BATCHES_IN_FLIGHT)

    def _count(self, embedded: EmbeddingsAnswer) -> None:
        """Count hits and misses by text, not by call, since texts are what the cache holds."""
        if embedded.status is not None:
            rest = len(embedded.rows) - embedded.hits
            self._cache.counts[embedded.model, CacheStatus.HIT] += embedded.hits
            self._cache.counts[embedded.model, embedded.status] += rest

    def _row_of(self, entry: bytes | None, work: _Computation) -> EmbeddedText | None:
        return None if entry is None else read_embedded_text(entry, work.text_model.dimensions)

    def _left_s(self, deadline_s: float) -> float:
        """The seconds left until `deadline_s`. Raises DeadlineExceeded: none are left."""
        left_s = deadline_s - self._now_s()
        if left_s <= 0:
            raise DeadlineExceeded("Deadline Exceeded")
        return left_s


def _call(name: str, version: str, inputs: Sequence[bytes], *, are_tokens: bool) -> InferCall:
    """An inference call of the same cost as embedding `inputs`; rows of tokens are padded to the longest
    row."""
    size = sum(map(len, inputs))
    if are_tokens:
        longest = max(map(len, inputs)) // 8
        return InferCall(name, version, "", (Tensor("", "INT64", (len(inputs), longest)),), elements=size // 8)
    return InferCall(name, version, "", (Tensor("", "BYTES", (len(inputs), 1)),), text_bytes=size, elements=len(inputs))


def _check(wanted: EmbeddingsRequest, model: TextModel) -> None:
    if wanted.dimensions not in (None, model.dimensions):
        raise InvalidRequest(
            f"dimensions must be {model.dimensions}, which is what model {wanted.model!r} has, or be left out", field="dimensions"
        )
    if wanted.are_tokens and model.token_inputs is None:
        raise InvalidRequest(
            f"model {wanted.model!r} takes texts, not tokens, which are of one model's vocabulary: send strings", field="input"
        )
