"""Embeddings for callers who know no tensors: what is kept of a call's texts is found, the rest computed together.

Each text is kept by itself, so a call is answered by whatever calls came before. Calls that lack the same texts at the same
time compute them once: the first one does, as a task that goes on when its caller leaves, with that caller's permit. What
that caller's own limits or deadline do to it is not passed on to the others, who try again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from control_plane.admission.admission import Permit
from control_plane.cache.response_cache import CacheScope, ResponseCache
from control_plane.core.errors import DeadlineExceeded, InvalidRequest, ModelNotFound, UpstreamUnavailable
from control_plane.core.infer_call import CacheStatus, Door, InferCall, Outcome
from control_plane.core.principal import Principal
from control_plane.core.steps import Steps
from control_plane.core.tensor import Tensor
from control_plane.embeddings.domain.embedding_tensors import EmbeddedText, read_embedded_text
from control_plane.embeddings.domain.openai_request import EmbeddingsRequest
from control_plane.embeddings.domain.text_model import TextModel
from control_plane.embeddings.text_batches import AT_ONCE, TextBatches
from control_plane.embeddings.text_models import TextModels
from control_plane.inference.coalescing import Flights
from control_plane.inference.inference import InferenceService, call_of
from control_plane.inference.run_steps import in_slices
from control_plane.inference.running_request import RunningRequest, Source
from control_plane.objects.domain.route import Route

_TEXTS_PER_STEP, _BYTES_PER_STEP = 128, 2**20
"""About 1 ms of looking for what is kept, or keeping it."""


class TextsRequest(Source, Protocol):
    """A request as the door holds it."""

    door: Door
    principal: Principal

    @property
    def timeout_s(self) -> float | None:
        """Seconds the caller gives; None leaves it to the default. Raises InvalidRequest."""

    @property
    def takes_kept_answers(self) -> bool:
        """Whether it need not be computed for this caller."""

    def read(self) -> Steps[EmbeddingsRequest]:
        """Validate it, in steps if it is large. Raises InvalidRequest, ModelNotFound."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """A call's answer."""

    rows: tuple[EmbeddedText, ...]
    """In the order of its inputs."""
    wanted: EmbeddingsRequest
    model: str
    """That computed them; the call may have named a route."""
    status: CacheStatus | None
    """None where the model's answers are not kept."""
    hits: int
    """Inputs that were there, neither computed for this call nor for another at the time."""


@dataclass(frozen=True, slots=True)
class _Job:
    """What is to be computed, by what."""

    call: InferCall
    text_model: TextModel
    are_tokens: bool
    running: RunningRequest
    deadline_s: float

    def costing(self, inputs: Sequence[bytes]) -> InferCall:
        """What computing these costs as much as."""
        return _call(self.call.model_name, inputs, are_tokens=self.are_tokens)


@dataclass(frozen=True, slots=True)
class _Flown:
    """What a flight brings home."""

    rows: list[EmbeddedText]
    computed: frozenset[int]
    """Of the rows, those that were not there."""


class Embeddings:
    """Answers embedding calls for one process: looks each text up, computes the rest, and records the call."""

    def __init__(
        self,
        *,
        inference: InferenceService,
        models: TextModels,
        cache: ResponseCache,
        default_timeout_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now_s` is the loop's time."""
        self._inference = inference
        self._models = models
        self._cache = cache
        self._default_timeout_s = default_timeout_s
        self._now_s = now_s
        self._flights: Flights[_Flown] = Flights()

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """From now on computations can be begun, as tasks of this group."""
        self._flights.begin(tasks)

    async def embed(self, request: TextsRequest) -> Embedded:
        """The embeddings of a call's inputs. Cancelling it ends what it computes, unless others wait for the same.

        Raises:
            InvalidRequest, ModelNotFound, PermissionDenied, LimitExceeded, Overloaded, DeadlineExceeded, UpstreamUnavailable,
            UpstreamFailed.
        """
        with self._inference.running.begin(request.door, request.principal, request) as running:
            if not running.enter():
                await running.enter_when_told()
            wanted = await in_slices(request.read())
            running.model_name = wanted.model
            named = _call(wanted.model, wanted.inputs, are_tokens=wanted.are_tokens)
            call, route = self._inference.resolve(named, request.principal)
            running.understood(call, named=named)
            deadline_s = self._now_s() + self._timeout_s(request, route)
            text_model = await self._models.of(call.model_name, call.model_version, timeout_s=self._left_s(deadline_s))
            _check(wanted, text_model)
            job = _Job(call, text_model, wanted.are_tokens, running, deadline_s)
            scope = self._cache.scope(call.model_name, route, request.principal.tenant)
            if scope is not None and request.takes_kept_answers:
                embedded = await self._found_or_computed(job, wanted, scope)
            else:
                embedded = await self._computed(job, wanted, None if scope is None else CacheStatus.BYPASS)
            running.outcome = Outcome.ANSWERED
            self._count(embedded)
            return embedded

    async def _computed(self, job: _Job, wanted: EmbeddingsRequest, status: CacheStatus | None) -> Embedded:
        assert job.running.permit is not None, "it has not been let in"
        inputs = [*dict.fromkeys(wanted.inputs)]
        rows = dict(zip(inputs, await self._compute(job, inputs, job.running.permit), strict=True))
        return Embedded(tuple([rows[each] for each in wanted.inputs]), wanted, job.call.model_name, status, 0)

    async def _found_or_computed(self, job: _Job, wanted: EmbeddingsRequest, scope: CacheScope) -> Embedded:
        keys, rows = await in_slices(self._look_steps(job, wanted, scope))
        missing = [each for each, row in rows.items() if row is None]
        status, computed = CacheStatus.HIT, frozenset[bytes]()
        if missing:
            flown, status = await self._share(job, scope, missing, [keys[each] for each in missing])
            rows.update(zip(missing, flown.rows, strict=True))
            computed = frozenset(missing[number] for number in flown.computed)
        job.running.is_cache_hit = status is not CacheStatus.MISS
        answer = [row for each in wanted.inputs if (row := rows[each]) is not None]
        hits = len(answer) - sum(each in computed for each in wanted.inputs)
        return Embedded(tuple(answer), wanted, job.call.model_name, status, hits)

    def _look_steps(
        self, job: _Job, wanted: EmbeddingsRequest, scope: CacheScope
    ) -> Steps[tuple[dict[bytes, bytes], dict[bytes, EmbeddedText | None]]]:
        """The key of each input, and what is kept here of it."""
        keys, rows = dict[bytes, bytes](), dict[bytes, EmbeddedText | None]()
        version, kind = job.call.model_version.encode(), b"tokens" if wanted.are_tokens else b"text"
        texts = size = 0
        for each in wanted.inputs:
            if each not in keys:
                key = keys[each] = scope.key(b"embedding", version, kind, each)
                rows[each] = self._kept(self._cache.look(key), job)
                size += len(each)
            texts += 1
            if texts >= _TEXTS_PER_STEP or size >= _BYTES_PER_STEP:
                texts = size = 0
                yield
        return keys, rows

    async def _share(self, job: _Job, scope: CacheScope, inputs: list[bytes], keys: list[bytes]) -> tuple[_Flown, CacheStatus]:
        """`inputs` that are not kept here: computed by this call, or for another that lacks the same."""
        flight = (scope.key(b"embeddings", *keys), scope.fingerprint)
        while self._flights.is_under_way(place := self._flights.place(flight, job.running)):
            joined = await self._flights.join(place, job.running, timeout_s=self._left_s(job.deadline_s))
            if joined is not None:
                return joined, CacheStatus.JOINED
        permit = job.running.hand_over_permit()
        flown = await self._flights.lead(place, job.running, lambda: self._fly(job, scope, inputs, keys, permit))
        return flown, CacheStatus.MISS if flown.computed else CacheStatus.HIT

    async def _fly(self, job: _Job, scope: CacheScope, inputs: list[bytes], keys: list[bytes], permit: Permit) -> _Flown:
        left_s = self._left_s(job.deadline_s)
        found = [self._kept(kept, job) for kept in await self._cache.find(scope, keys, cost_units=job.running.units, timeout_s=left_s)]
        missing = [number for number, row in enumerate(found) if row is None]
        if missing:
            began_s = self._now_s()
            computed = await self._compute(job, [inputs[number] for number in missing], permit)
            self._cache.computed(scope, self._now_s() - began_s, cost_units=job.running.units)
            units = job.running.units if job.running.units is not None else (self._now_s() - began_s) * 1e3
            for count, (number, row) in enumerate(zip(missing, computed, strict=True)):
                found[number] = row
                self._cache.keep(scope, keys[number], row.to_bytes(), cost_units=units / len(missing))
                if count % _TEXTS_PER_STEP == _TEXTS_PER_STEP - 1:
                    await asyncio.sleep(0)
        return _Flown([row for row in found if row is not None], frozenset(missing))

    async def _compute(self, job: _Job, inputs: Sequence[bytes], permit: Permit) -> list[EmbeddedText]:
        """Of each of `inputs`, no two of them alike; the call is charged for these alone."""
        running = job.running
        running.expect(job.costing(inputs))
        await permit.turn(self._inference.models.name_of(job.call.model_name), cost_units=running.expected_units, deadline_s=job.deadline_s)
        try:
            return await self._send(job, inputs)
        except (ModelNotFound, UpstreamUnavailable) as exc:
            if isinstance(exc, UpstreamUnavailable) and not exc.is_unsent:
                raise
            return await self._send(job, inputs)  # the model or its server has just gone; of a fleet another has it, or loads it

    async def _send(self, job: _Job, inputs: Sequence[bytes]) -> list[EmbeddedText]:
        timeout_s = self._left_s(job.deadline_s)
        async with self._inference.dispatch.server_for(call_of(job.running), timeout_s=timeout_s, running=job.running) as server:
            job.running.expect(job.costing(inputs))
            batches = TextBatches(server, job.call, job.text_model, job.are_tokens, lambda: self._left_s(job.deadline_s))
            try:
                return await batches.compute(inputs)
            finally:
                job.running.sent_in_parts(batches.sent / len(inputs), AT_ONCE)

    def _count(self, embedded: Embedded) -> None:
        """Each text by itself, as it is kept."""
        if embedded.status is not None:
            rest = len(embedded.rows) - embedded.hits
            self._cache.counts[embedded.model, CacheStatus.HIT] += embedded.hits
            self._cache.counts[embedded.model, embedded.status] += rest

    def _kept(self, kept: bytes | None, job: _Job) -> EmbeddedText | None:
        return None if kept is None else read_embedded_text(kept, job.text_model.dimensions)

    def _timeout_s(self, request: TextsRequest, route: Route | None) -> float:
        timeout_s = request.timeout_s
        if timeout_s is not None:
            return timeout_s
        return self._default_timeout_s if route is None or route.deadline_s is None else route.deadline_s

    def _left_s(self, deadline_s: float) -> float:
        """Raises DeadlineExceeded: nothing is."""
        left_s = deadline_s - self._now_s()
        if left_s <= 0:
            raise DeadlineExceeded("Deadline Exceeded")
        return left_s


def _call(name: str, inputs: Sequence[bytes], *, are_tokens: bool) -> InferCall:
    """A request for so many inputs, as far as its cost goes; tokens cost as much as the longest of them, to which they are padded."""
    size = sum(map(len, inputs))
    if are_tokens:
        longest = max(map(len, inputs)) // 8
        return InferCall(name, "", "", (Tensor("", "INT64", (len(inputs), longest)),), elements=size // 8)
    return InferCall(name, "", "", (Tensor("", "BYTES", (len(inputs), 1)),), text_bytes=size, elements=len(inputs))


def _check(wanted: EmbeddingsRequest, model: TextModel) -> None:
    if wanted.dimensions not in (None, model.dimensions):
        raise InvalidRequest(
            f"dimensions must be {model.dimensions}, which is what model {wanted.model!r} has, or be left out", field="dimensions"
        )
    if wanted.are_tokens and model.token_inputs is None:
        raise InvalidRequest(
            f"model {wanted.model!r} takes texts, not tokens, which are of one model's vocabulary: send strings", field="input"
        )
