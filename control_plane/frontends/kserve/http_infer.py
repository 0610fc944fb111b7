"""One inference request over HTTP (`infer` or `generate`), in the form that `inference/inference` uses.

Made by `frontends/kserve/http`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, replace

from control_plane.auth.access import Access
from control_plane.cache.domain.cached_response import (
    decode_http,
    encode_http,
    forbids_cached_answer,
    mark_http,
)
from control_plane.cache.keys import CacheScope, canonical_json, identity_of
from control_plane.core.action import Action
from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import ControlPlaneError, Overloaded
from control_plane.core.infer_call import CacheStatus, Frontend, InferCall, Outcome
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.core.tensor import RawTensor
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.common.caller import TIMEOUT_FIELD, timeout_s_of, with_timeout
from control_plane.frontends.common.inflating import InflatedBody
from control_plane.frontends.http.answers.streams import begun_on, whole
from control_plane.frontends.kserve.copies import HttpCopy
from control_plane.frontends.kserve.grpc_infer import MAX_CACHEABLE_REQUEST_BYTES, GrpcInferContext, GrpcInferRequest, part_request
from control_plane.frontends.kserve.http_verbatim import HttpVerbatimCache
from control_plane.inference.routes.targets import MODEL_HEADER, WHOLE_BYTES, ends_of
from control_plane.inference.sharded_models import render_failure
from control_plane.protocols.content_encoding import decoded_pieces, is_encoded
from control_plane.protocols.header_forwarding import HeaderForwarding
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, with_header
from control_plane.protocols.kserve.ensemble_json import GivenTensors, read_given, render_answer
from control_plane.protocols.kserve.requests.body_limits import BodyLimits, InflateBound
from control_plane.protocols.kserve.requests.infer_json import MAX_KEPT_BYTES, infer_request_steps, json_object_steps, small_infer_request
from control_plane.protocols.kserve.requests.reserved_parameters import refuse_priority, refuse_reserved
from control_plane.protocols.kserve.routes import V2Route, target_for
from control_plane.protocols.kserve.sequence_ids import own_body_steps, own_call
from control_plane.protocols.kserve.tensors.same_inputs import inputs_of_body
from control_plane.sharding.domain.plan import Step
from control_plane.triton.ports import HttpStream, ModelStream, RegionUpstream, Slot, Upstream

_KIND = b"http"
_TRACEPARENT = b"traceparent"
_JSON_LENGTH = b"inference-header-content-length"
_GENERATE, _ANSWERED = Action.GENERATE, Outcome.ANSWERED  # once: in Python 3.11 to look up a member of an enum takes as long as a call


@dataclass(frozen=True, slots=True)
class HttpInferContext:
    """The collaborators and limits that all inference requests over HTTP share."""

    verbatim: HttpVerbatimCache
    limits: BodyLimits
    forwarding: HeaderForwarding
    access: Access


class HttpInferRequest:
    """One request over HTTP, as `inference/requests.InferRequest` and `GenerateRequest`."""

    __slots__ = ("_came", "_chosen", "_context", "_failure", "_request_id", "_route", "http", "principal", "slot")
    frontend = Frontend.HTTP
    sends_whole = False

    def __init__(self, http: HttpRequest, route: V2Route, principal: Principal, context: HttpInferContext) -> None:
        self._context = context
        self._came = http
        """The request as it came, even after its body was decoded or it was readdressed."""
        self.http = http
        self.principal = principal
        self._route = route
        self._failure: ControlPlaneError | None = None
        self._request_id = ""
        self._chosen = ""
        self.slot: Slot | None = None

    @property
    def timeout_s(self) -> float | None:
        fields = self.http.derived.fields
        # Hardly any request has the field: asked without a call.
        return None if fields is not None and TIMEOUT_FIELD not in fields else timeout_s_of(self._came)

    def read_at_once(self) -> InferCall | None:
        if self._failure is not None or self._route.action is _GENERATE:
            return None
        body, derived = self.http.body, self.http.derived
        if derived.infer_call is not None and len(body) == derived.infer_bytes and body.startswith(derived.infer_json):
            return derived.infer_call
        name, version, length = self._route.model_name, self._route.model_version, self._json_length()
        call = small_infer_request(body, length, model_name=name, model_version=version, limits=self._context.limits)
        if call is None or (call.concerns_others and self.principal is not ANONYMOUS):
            return None
        if derived.head and 0 < (json_bytes := int(length or 0)) <= MAX_KEPT_BYTES:
            derived.infer_json, derived.infer_bytes, derived.infer_call = bytes(body[:json_bytes]), len(body), call
        return call

    def read(self) -> Steps[InferCall]:
        if self._failure is not None:
            raise self._failure
        name, version = self._route.model_name, self._route.model_version
        if self._route.action is _GENERATE:
            return _generate_steps(self.http, name, version, self._context.limits)
        limits = self._context.limits
        steps = infer_request_steps(self.http.body, self._json_length(), model_name=name, model_version=version, limits=limits)
        return steps if self.principal is ANONYMOUS else self._tenants_steps(steps)

    def _tenants_steps(self, steps: Steps[InferCall]) -> Steps[InferCall]:
        """Read a tenant's request, and replace the id of its sequence, if it is in one. Raises InvalidRequest: it has a priority, too."""
        call = yield from steps
        refuse_priority(call)
        if not call.sequence_id:
            return call
        own = own_call(call, self._context.access.sequence_key(self.principal))
        http, length = self.http, self._json_length()
        body, json_bytes = yield from own_body_steps(http.body, len(http.body) if length is None else int(length), call, own)
        headers = [each for each in http.headers if each[0].lower() != _JSON_LENGTH]
        if length is not None:
            headers.append((b"Inference-Header-Content-Length", b"%d" % json_bytes))
        self.http = HttpRequest(http.method, http.target, headers, body)
        return own

    def name_seen(self) -> str:
        return self._route.model_name

    def header_id(self) -> str:
        return self.http.request_id

    def readdress(self, model_name: str, model_version: str) -> None:
        self.http = self.http.with_target(target_for(self.http.target, model_name, model_version))
        self._route = replace(self._route, model_name=model_name, model_version=model_version)

    def given(self, call: InferCall) -> GivenTensors:
        length = self._json_length()
        return read_given(self.http.body, len(self.http.body) if length is None else int(length))

    def part(self, step: Step, frame: bytes) -> GrpcInferRequest:
        context = GrpcInferContext(None, self._context.limits, self._context.forwarding, self._context.access)
        return part_request(frame, self.principal, context, self.field("traceparent"))

    def answer_of_parts(self, call: InferCall, version: str, given: GivenTensors, outputs: Sequence[tuple[str, RawTensor]]) -> HttpAnswer:
        return render_answer(call.model_name, version, call.request_id, given, outputs)

    def failed_by(self, code: int, text: str) -> HttpAnswer:
        return render_failure(code, text)

    def choose(self, model_name: str) -> None:
        self._chosen = model_name

    def with_model(self, answer: HttpAnswer) -> HttpAnswer:
        return HttpAnswer(answer.status, self.head_with_model(answer.head), answer.body)

    def head_with_model(self, head: bytes) -> bytes:
        return b"%b%b: %b\r\n\r\n" % (head[:-2], MODEL_HEADER.encode(), self._chosen.encode())

    def send_on(self, gateway: RegionUpstream, *, timeout_s: float) -> Awaitable[HttpAnswer]:
        return gateway.http.send(with_timeout(self._came, timeout_s), timeout_s=timeout_s)

    def stream_on(self, gateway: RegionUpstream, *, timeout_s: float) -> Awaitable[HttpAnswer | ModelStream]:
        return begun_on(gateway, self._came, timeout_s)

    def with_field(self, answer: HttpAnswer, name: str, value: str) -> HttpAnswer:
        return with_header(answer, f"{name}: {value}".encode())

    def with_traceparent(self, value: bytes) -> HttpInferRequest:
        own, http = copy(self), self.http
        headers = [each for each in http.headers if each[0].lower() != _TRACEPARENT]
        own.http = HttpRequest(http.method, http.target, [*headers, (_TRACEPARENT, value)], http.body)
        return own

    def field(self, name: str) -> str | None:
        return self.http.text_header(name.encode())

    def unit(self, call: InferCall) -> tuple[bytes, ...]:
        return self._exact_content(call) if len(self.http.body) <= WHOLE_BYTES else ends_of(self.http.body)

    def send(self, server: Upstream, *, timeout_s: float) -> Awaitable[HttpAnswer]:
        return server.http.send(self.http, timeout_s=timeout_s, slot=self.slot)

    async def stream(self, server: Upstream, *, timeout_s: float) -> HttpAnswer | ModelStream:
        answer = await server.http.stream(self.http, timeout_s=timeout_s, slot=self.slot)
        if isinstance(answer, HttpAnswer) or answer.status == 200:
            return answer
        return await whole(answer, takes_chunks=self.http.takes_chunks)  # an error in place of the first piece

    def outcome(self, answer: HttpAnswer | HttpStream) -> Outcome:
        if answer.status == 200:
            return _ANSWERED
        return Outcome.MODEL_NOT_FOUND if answer.status == 404 else Outcome.UPSTREAM_ERROR

    def body_bytes(self) -> int:
        return len(self.http.body)

    def copy_for(self, model_name: str, model_version: str) -> HttpCopy:
        http = self.http
        return HttpCopy(HttpRequest(http.method, target_for(http.target, model_name, model_version), http.headers, bytes(http.body)))

    def key(self, scope: CacheScope, call: InferCall) -> bytes | None:
        if len(self.http.body) > MAX_CACHEABLE_REQUEST_BYTES or not accepts_cached_answers(self.http):
            return None
        self._request_id = call.request_id
        return scope.key(_KIND, call.model_version.encode(), self._identity(call, self._context.forwarding.matched(self.http.headers)))

    def _identity(self, call: InferCall, forwarded: bytes) -> bytes:
        return identity_of(*self._exact_content(call), *filter(None, (forwarded,)))

    def content(self, call: InferCall) -> tuple[bytes, ...]:
        json = self._json()
        return inputs_of_body(json, memoryview(self.http.body)[len(json) :]) or self._exact_content(call)

    def _exact_content(self, call: InferCall) -> tuple[bytes, bytes]:
        json = self._json()
        # The id is the caller's and Triton only repeats it, so requests that differ in their ids alone share
        # an answer.
        return canonical_json(json, call.request_id), bytes(self.http.body[len(json) :])

    def _json(self) -> bytes:
        """The body without the binary data after its JSON."""
        json_length = self._json_length()
        return bytes(self.http.body if json_length is None else self.http.body[: int(json_length)])

    def encode_answer(self, answer: HttpAnswer) -> bytes | None:
        return encode_http(answer, request_id=self._request_id)

    def decode_answer(self, encoded: bytes, status: CacheStatus) -> HttpAnswer:
        return decode_http(encoded, status, request_id=self._request_id)

    def keep_verbatim(self, call: InferCall, key: bytes, answer: HttpAnswer) -> None:
        if self.http.body is self._came.body:  # a body that was decoded is not the one that comes again
            told = self.with_model(answer) if self._chosen else answer
            self._context.verbatim.keep(self._came, self._json(), self.principal, call, key, told)

    def keep_refusal(self, call: InferCall, error: Overloaded) -> None:
        if self.http.body is self._came.body:  # what a compressed one costs its size does not say
            self._context.verbatim.keep_refusal(self._came, self.principal, call, error)

    def mark(self, answer: HttpAnswer, status: CacheStatus) -> HttpAnswer:
        return mark_http(answer, status)

    def _json_length(self) -> bytes | None:
        return self.http.single_header(_JSON_LENGTH)

    def fail(self, error: ControlPlaneError) -> None:
        """Make `read` raise `error`: the body could not be decoded, and the refusal is to be recorded like
        any other."""
        self._failure = error


def accepts_cached_answers(http: HttpRequest) -> bool:
    """Whether the caller accepts cached answers (Cache-Control)."""
    return not forbids_cached_answer(http.text_header(b"cache-control"))


@asynccontextmanager
async def decode(request: HttpInferRequest, budget: BodyBudget, limits: BodyLimits) -> AsyncIterator[None]:
    """Decode the request's Content-Encoding in a thread; the decoded body takes from the budget within the
    `with` block.

    A body that cannot be decoded does not raise here: `read` does (`HttpInferRequest.fail`).
    """
    http, decoded = request.http, InflatedBody(budget)
    try:
        try:
            encoding = http.single_header(b"content-encoding")
            is_packed = encoding is not None and is_encoded(encoding)
            if is_packed:
                await decoded.read_in_thread(decoded_pieces(http.body, _bound(http, limits)))
            # Triton gets the decoded body, which is the one that was checked.
            headers = [field for field in http.headers if field[0].lower() != b"content-encoding"]
            request.http = HttpRequest(http.method, http.target, headers, decoded.body if is_packed else http.body)
        except ControlPlaneError as exc:
            request.fail(exc)
        yield
    finally:
        decoded.release()


def _bound(http: HttpRequest, limits: BodyLimits) -> InflateBound:
    if is_all_json(http):
        return limits.inflated_json(len(http.body))
    return limits.inflated(len(http.body))


def is_all_json(http: HttpRequest) -> bool:
    """Whether an inference request consists of JSON only, without binary data after it."""
    return http.header(b"inference-header-content-length") is None


def _generate_steps(http: HttpRequest, name: str, version: str, limits: BodyLimits) -> Steps[InferCall]:
    limits.check_json_bytes(len(http.body))
    fields = yield from json_object_steps(http.body, limits)
    refuse_reserved(fields)  # what is no input becomes a parameter
    if type(parameters := fields.get("parameters")) is dict:
        refuse_reserved(parameters)
    is_streamed = http.target.partition(b"?")[0].endswith(b"/generate_stream")
    return InferCall(name, version, "", (), text_bytes=len(http.body), is_open_ended=is_streamed)
