"""The paths of jobs on the HTTP data port: `POST /v2/models/MODEL/jobs`, `/v2/jobs` and what is below it.

A submission is the body and the header fields of `infer`; its result is the answer that `infer` would have given, byte
for byte. `Prefer: wait=N` is of RFC 7240, `Idempotency-Key` of draft-ietf-httpapi-idempotency-key-header. Called by
`frontends/kserve/http`, which has authorised the caller.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from urllib.parse import parse_qs

import orjson

from control_plane.concurrency.run_steps import run_in_steps
from control_plane.core.action import Action
from control_plane.core.errors import InvalidRequest, RouteNotFound
from control_plane.core.principal import Principal
from control_plane.frontends.common.body_budget import UNCOUNTED_BYTES, BodyBudget
from control_plane.frontends.common.lists import list_steps
from control_plane.frontends.jobs.events import JobEvents
from control_plane.frontends.jobs.fingerprint import fingerprint
from control_plane.frontends.jobs.result_stream import ResultStream, begin_result
from control_plane.frontends.jobs.webhook_field import Webhooks, webhook_of
from control_plane.jobs.attempts import decode_attempt, encode_outcome
from control_plane.jobs.domain.delivery import Delivery
from control_plane.jobs.domain.job import Job, JobState, PriceClass
from control_plane.jobs.domain.job_view import view_of
from control_plane.jobs.files.callers_files import CallersFiles
from control_plane.jobs.jobs import JOB_ID, Jobs, Submission
from control_plane.jobs.ports import Compute, Computed, TryAgain
from control_plane.protocols.header_forwarding import NO_FORWARDING, HeaderForwarding
from control_plane.protocols.http1 import NOT_KEPT, Body, BodyPieces, Headers, HttpAnswer, HttpRequest, make_answer, with_header
from control_plane.protocols.kserve.routes import V2Route, read_route
from control_plane.triton.ports import HttpStream

_OF_THE_JOB = frozenset(
    (
        b"tidegate-job-class",
        b"tidegate-job-expires-s",
        b"tidegate-job-webhook",
        b"tidegate-job-input",
        b"tidegate-job-output",
    )
)
_NOT_OF_THE_REQUEST = _OF_THE_JOB | frozenset(
    (
        b"authorization",
        b"proxy-authorization",
        b"x-api-key",
        b"cookie",
        b"host",
        b"content-length",
        b"transfer-encoding",
        b"connection",
        b"keep-alive",
        b"expect",
        b"prefer",
        b"idempotency-key",
    )
)
"""Fields that are not stored with a job: credentials, and what is about this connection or the job itself."""

_NO_FILES = "jobs have no input or output in files here: an administrator allows places for them (TIDEGATE_JOBS_STORES)"
_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?(\d{1,6})\"?\s*(?=$|[,;])", re.IGNORECASE)
_MAX_WAIT_S = 60
_KEY = re.compile(rb'"?([\x21\x23-\x5b\x5d-\x7e]{1,255})"?')
_MAX_EXPIRES_S = 30 * 86_400
_MAX_FIELDS_BYTES = 4096
"""Most bytes of the header fields that are kept with a job. A store has them in its record, which in Redis is memory, and no bound
on bytes counts them: of 16 KiB each, some 20,000 small jobs would fill the Redis that keys and leases are in, too."""
_MOST_LISTED = 1000


class JobsHttp:
    """The application behind the paths of jobs: `frontends/kserve/http.JobsApplication`."""

    def __init__(
        self,
        jobs: Jobs,
        *,
        webhooks: Webhooks | None = None,
        files: CallersFiles | None = None,
        budget: BodyBudget | None = None,
        max_input_bytes: int = 0,
        forwarding: HeaderForwarding = NO_FORWARDING,
    ) -> None:
        """Without `webhooks` no job may have one. Without `files` callers send the input themselves; with them it has
        `max_input_bytes` at most, within the memory of `budget`. `forwarding` says which header fields models see.
        """
        self._forwarding = forwarding
        self._files = files
        self._budget = budget
        self._max_input_bytes = max_input_bytes
        self._jobs = jobs
        self._webhooks = webhooks
        self._events = JobEvents(jobs)
        self.compute: Compute | None = None
        """Computes the attempts that `tidegate jobs run` hands over; None while this gateway computes no jobs."""

    async def answer(self, request: HttpRequest, route: V2Route, principal: Principal) -> HttpAnswer | HttpStream:
        """Answer one request. Raises ControlPlaneError."""
        jobs = self._jobs
        match route.action:
            case Action.SUBMIT_JOB:
                return await self._submit(request, route, principal)
            case Action.LIST_JOBS:
                return await self._list(request, principal)
            case Action.JOB_RESULT:
                job = await jobs.wait(await jobs.get(principal, route.job_id), _wait_s(request))
                return _with_header(await _result(jobs, job), b": ".join(NOT_KEPT))
            case Action.JOB_EVENTS:
                return self._events.read(principal, await jobs.get(principal, route.job_id))
            case Action.COMPUTE_JOB:
                return await self._attempt(request, route)
            case Action.CANCEL_JOB:
                return make_answer(200, orjson.dumps(view_of(await jobs.cancel(principal, route.job_id), None)))
            case _:
                job = await jobs.wait(await jobs.get(principal, route.job_id), _wait_s(request))
                return make_answer(200, orjson.dumps(view_of(job, await jobs.place(job))), headers=[NOT_KEPT])

    async def _submit(self, request: HttpRequest, route: V2Route, principal: Principal) -> HttpAnswer | HttpStream:
        webhook = webhook_of(request, b"tidegate-job-webhook", principal, self._webhooks)
        wanted = _submission(request, route, self._forwarding, output=self._output(request, principal), webhook=webhook)
        job = await self._accepted(request, wanted, principal)
        if wait_s := _wait_s(request):
            job = await self._jobs.wait(job, wait_s)
            if job.result is not None:
                return _with_header(await _result(self._jobs, job), b"Preference-Applied: wait=%d" % wait_s)
        body = orjson.dumps(view_of(job, None))  # its place in line is counted for who asks: behind thousands that takes a while
        headers: Headers = [(b"Location", f"/v2/jobs/{job.id}".encode())]
        return make_answer(202, body, headers=headers)

    async def _accepted(self, request: HttpRequest, wanted: Submission, principal: Principal) -> Job:
        """Accept a job whose body the caller has sent, still sends, or has where it says."""
        body, rest = await _beginning(request)
        given = _file_url(request, b"tidegate-job-input")
        if given is None:
            announced_bytes = request.content_length if rest is not None else 0
            return await self._jobs.submit(principal, replace(wanted, body=body, rest=rest, announced_bytes=announced_bytes))
        if self._files is None or self._budget is None:
            raise InvalidRequest(_NO_FILES)
        if body:
            raise InvalidRequest("a job has its input in the body or where tidegate-job-input says, not both")
        room = partial(self._jobs.require_room, principal, idempotency_key=wanted.idempotency_key)
        reading = self._files.input(principal.tenant, given, max_bytes=self._max_input_bytes, budget=self._budget, require_room=room)
        async with reading as found:
            body, rest = await _first_of(found)
            return await self._jobs.submit(principal, replace(wanted, body=body, rest=rest, announced_bytes=found.size_bytes))

    def _output(self, request: HttpRequest, principal: Principal) -> Delivery | None:
        """Read where the result is written to. Raises InvalidRequest."""
        given = _file_url(request, b"tidegate-job-output")
        if given is None:
            return None
        if self._files is None:
            raise InvalidRequest(_NO_FILES)
        return self._files.accepted_output(principal.tenant, given)

    async def _attempt(self, request: HttpRequest, route: V2Route) -> HttpAnswer:
        """Compute an attempt at a job that another process has claimed; who leaves ends the computing."""
        job, body = decode_attempt(request.body)
        if job.id != route.job_id or read_route(b"POST", job.target.encode()).action not in (Action.INFER, Action.EMBED):
            raise InvalidRequest("the record is not of this job, or not of an inference")
        if self.compute is None:
            raise RouteNotFound("this gateway computes no jobs")
        outcome: Computed | TryAgain
        try:
            outcome = await self.compute.compute(job, body)
        except TryAgain as exc:
            outcome = exc
        return make_answer(200, encode_outcome(outcome), content_type=b"application/octet-stream")

    async def _list(self, request: HttpRequest, principal: Principal) -> HttpAnswer:
        query = parse_qs(request.target.partition(b"?")[2].decode("latin-1"), keep_blank_values=True)
        if unknown := query.keys() - {"state", "before", "limit"}:
            raise InvalidRequest(f"unknown parameter {min(unknown)[:50]!r}; there are state, before and limit")
        given = {name: values[-1] for name, values in query.items()}
        state, before, limit = given.get("state", ""), given.get("before", ""), given.get("limit", "100")
        if state and state not in set(JobState):
            raise InvalidRequest(f"no job is in state {state[:50]!r}; expected one of {', '.join(JobState)}")
        if before and not JOB_ID.fullmatch(before):
            raise InvalidRequest("before must be the id of a job, the last one of the list before")
        if not (limit.isascii() and limit.isdigit() and len(limit) <= 4 and 1 <= int(limit) <= _MOST_LISTED):
            raise InvalidRequest(f"limit must be a number from 1 to {_MOST_LISTED}")
        found = await self._jobs.visible_to(principal, state=JobState(state) if state else None, before=before, limit=int(limit))
        views = await run_in_steps(list_steps(found, lambda job: view_of(job, None)))
        return make_answer(200, orjson.dumps({"jobs": views}), headers=[NOT_KEPT])


async def _beginning(request: HttpRequest) -> tuple[Body, BodyPieces | None]:
    """Return the body, or the beginning of a large one and what receives its rest. Raises ControlPlaneError: it does not come."""
    return (request.body, None) if request.stream is None else await _first_of(request.stream)


async def _first_of(pieces: BodyPieces) -> tuple[Body, BodyPieces | None]:
    """Return a small body, or the first pieces of a large one and what receives its rest. Raises ControlPlaneError: it does not come."""
    body = bytearray()
    while len(body) <= UNCOUNTED_BYTES:
        piece = await pieces.receive()
        if piece is None:
            return body, None
        body += piece
    return body, pieces


async def _result(jobs: Jobs, job: Job) -> HttpAnswer | ResultStream:
    if job.result is not None and job.result.blob.data is None and job.result.blob.size_bytes > UNCOUNTED_BYTES:
        return await begin_result(await jobs.open_result(job), job.result.status, job.result.head_bytes)
    whole = await jobs.result(job)
    assert job.result is not None
    head_bytes = job.result.head_bytes
    return HttpAnswer(job.result.status, whole[:head_bytes], whole[head_bytes:])


def _with_header(result: HttpAnswer | ResultStream, line: bytes) -> HttpAnswer | ResultStream:
    return with_header(result, line) if isinstance(result, HttpAnswer) else result.with_header(line)


def _submission(
    request: HttpRequest, route: V2Route, forwarding: HeaderForwarding, *, output: Delivery | None, webhook: Delivery | None
) -> Submission:
    """Read a submission. Raises InvalidRequest."""
    for name in {name.lower() for name, _ in request.headers} - _OF_THE_JOB:
        if name.startswith(b"tidegate-job-"):
            known = ", ".join(sorted(each.decode() for each in _OF_THE_JOB))
            raise InvalidRequest(f"there is no header field {name.decode('latin-1')[:100]!r}; there are {known}")
    key = _idempotency_key(request)
    version = f"/versions/{route.model_version}" if route.model_version else ""
    return Submission(
        model=route.model_name,
        target=f"/v2/models/{route.model_name}{version}/infer",
        headers=_kept_fields(request),
        body=request.body,
        price_class=_price_class(request),
        expires_s=_expires_s(request),
        idempotency_key=key,
        fingerprint=fingerprint(request.headers, forwarding) if key else "",
        output=output,
        webhook=webhook,
    )


def _kept_fields(request: HttpRequest) -> tuple[tuple[str, str], ...]:
    """Return the header fields that are kept with a job. Raises InvalidRequest: they are too large."""
    found = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in _own_headers(request))
    size_bytes = sum(len(name) + len(value) for name, value in found)
    if size_bytes > _MAX_FIELDS_BYTES:
        raise InvalidRequest(
            f"the header fields that are kept with a job (no credentials, nothing about the connection) have {size_bytes} bytes together, "
            f"and may have {_MAX_FIELDS_BYTES}: leave out those that the model does not need"
        )
    return found


def _own_headers(request: HttpRequest) -> Headers:
    listed = {name.strip().lower() for name in (request.text_header(b"connection") or "").encode("latin-1").split(b",")}
    dropped = _NOT_OF_THE_REQUEST | (listed - _NEVER_DROPPED)
    return [field for field in request.headers if field[0].lower() not in dropped]


_NEVER_DROPPED = frozenset((b"inference-header-content-length", b"content-encoding"))
"""Fields that decide how the body is read; a caller could list them in `Connection`."""


def _file_url(request: HttpRequest, name: bytes) -> str | None:
    given = request.single_header(name)
    try:
        return None if given is None else given.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name.decode()} is not UTF-8") from None


def _price_class(request: HttpRequest) -> PriceClass:
    given = request.single_header(b"tidegate-job-class")
    if given is None:
        return PriceClass.STANDARD
    try:
        return PriceClass(given.decode("latin-1"))
    except ValueError:
        raise InvalidRequest(f"tidegate-job-class must be one of {', '.join(PriceClass)}") from None


def _expires_s(request: HttpRequest) -> float | None:
    given = request.single_header(b"tidegate-job-expires-s")
    if given is None:
        return None
    if not given.isdigit() or len(given) > 8 or not 1 <= int(given) <= _MAX_EXPIRES_S:
        raise InvalidRequest(f"tidegate-job-expires-s must be a whole number of seconds from 1 to {_MAX_EXPIRES_S}")
    return float(given)


def _idempotency_key(request: HttpRequest) -> str:
    given = request.single_header(b"idempotency-key")
    if given is None:
        return ""
    found = _KEY.fullmatch(given)
    if found is None:
        raise InvalidRequest("Idempotency-Key must have 1 to 255 visible ASCII characters, as a UUID has; quotes around it are optional")
    return found.group(1).decode()


def _wait_s(request: HttpRequest) -> int:
    """Seconds that the caller prefers to wait; 0 where it does not say so."""
    found = _WAIT.search(request.text_header(b"prefer") or "")
    return 0 if found is None else min(int(found.group(1)), _MAX_WAIT_S)
