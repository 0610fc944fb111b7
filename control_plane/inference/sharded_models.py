"""Requests to sharded models: each part is requested as a model of its own, and the answer is assembled from the results.

`fleet/routing/dispatch` calls it for requests to models that no server has as a whole. Each part is a request to
`InferenceService` like any other: cached, queued, routed, resent and hedged. Its usage and its count belong to the whole
request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import orjson

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, ModelNotFound, NotSupported
from control_plane.core.infer_call import InferCall
from control_plane.core.tensor import RawTensor, element_count
from control_plane.inference.in_flight.running_request import AuthorizedRequest
from control_plane.inference.inference import InferenceService
from control_plane.inference.requests import WholeRequest
from control_plane.protocols.grpc import GrpcAnswer, GrpcStatus, frame_prefix, message_in
from control_plane.protocols.http1 import HttpAnswer, make_answer
from control_plane.protocols.kserve.ensemble_json import GivenTensors
from control_plane.protocols.kserve.ensemble_proto import part_outputs, part_request
from control_plane.protocols.kserve.requests.body_limits import InflateBound
from control_plane.sharding.domain.plan import ONLY_VERSION, Plan, Step, read_plan
from control_plane.sharding.domain.request_check import check_inputs, wanted_outputs
from control_plane.sharding.steps import Bytes, HeldBytes, StepRun, held_bytes

AnswerT = TypeVar("AnswerT")

_HTTP_OF_PARTS_CODE: dict[int, int] = {
    GrpcStatus.INVALID_ARGUMENT: 400,
    GrpcStatus.NOT_FOUND: 404,
    GrpcStatus.RESOURCE_EXHAUSTED: 413,
    GrpcStatus.UNIMPLEMENTED: 501,
    GrpcStatus.UNAVAILABLE: 503,
    GrpcStatus.DEADLINE_EXCEEDED: 504,
}
"""The HTTP status for the gRPC status of a part, as Triton has it; 500 for all others."""


class _PartFailed(Exception):
    """A part has answered with an error, of which the whole's answer is made."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


NoteSent = Callable[[float, AuthorizedRequest], None]
"""Notes the seconds that a part was at a server (0: at none), however it ended."""


class SendsWholes(Protocol):
    """Port for requests to sharded models, as the dispatcher calls it."""

    async def send(
        self, request: WholeRequest[AnswerT], call: InferCall, config: str, *, timeout_s: float, running: AuthorizedRequest
    ) -> AnswerT: ...


class ShardedModels:
    """Carries out the requests of sharded models, part by part."""

    def __init__(self, inference: InferenceService, budget: Bytes, *, max_bytes: int, now_s: Callable[[], float] = time.monotonic) -> None:
        """The tensors in between of one request take `max_bytes` at most. `now_s` is the loop's time."""
        self._inference = inference
        self._budget = budget
        self._max_bytes = max_bytes
        self._now_s = now_s

    async def send(
        self, request: WholeRequest[AnswerT], call: InferCall, config: str, *, timeout_s: float, running: AuthorizedRequest
    ) -> AnswerT:
        """Answer a request; `config` is the configuration of its model, an ensemble.

        Raises InvalidRequest, NotSupported, PayloadTooLarge, ModelLoadFailed (its steps cannot be carried out), ModelNotFound,
        and what a part raises, whose name the text then has. If it is cancelled, its parts are.
        """
        deadline_s = self._now_s() + timeout_s
        plan = read_plan(config)
        given = _read(request, call)
        wanted = wanted_outputs(plan, given.outputs)
        check_inputs(plan, call.request_id, given.inputs)
        with held_bytes(self._budget, most=self._max_bytes) as held:
            parts = _Parts(self, request, running, plan, given, held, deadline_s)
            optional = {each.name for each in plan.inputs if each.is_optional}
            run = StepRun(plan.steps_for(wanted), given.inputs, wanted, optional=optional, compute=parts.compute)
            try:
                tensors = await run.run()
                return request.answer_of_parts(call, ONLY_VERSION, given, [(name, tensors[name]) for name in wanted])
            except _PartFailed as failed:
                return request.failed_by(failed.code, str(failed))
            finally:
                parts.charge_whole()

    async def ask(self, request: Any, whole: AuthorizedRequest, call: InferCall, note: NoteSent, *, timeout_s: float) -> GrpcAnswer:
        """Ask a part, and `note` how long it was at a server, however it ends."""
        part = self._inference.running.begin_part(whole, call)
        with part:
            try:
                answer: GrpcAnswer = await self._inference.ask(request, part, None, timeout_s)
            finally:
                was_sent = part.sent_s is not None and not part.is_cache_hit
                note(self._now_s() - part.sent_s if was_sent and part.sent_s is not None else 0.0, part)
            part.answered(request.outcome(answer), answer)
        return answer

    def left_s(self, deadline_s: float) -> float:
        return deadline_s - self._now_s()

    def now_s(self) -> float:
        return self._now_s()


@dataclass(slots=True)
class _Parts:
    """The parts of one request: computes a step by asking its part."""

    models: ShardedModels
    request: WholeRequest[Any]
    running: AuthorizedRequest
    plan: Plan
    given: GivenTensors
    held: HeldBytes
    deadline_s: float
    at_servers_s: float = 0.0
    """Seconds that parts were at servers, one after the other."""
    units: float = 0.0
    """Expected compute units of all parts that were asked, and of those that a server was asked for."""
    sent_units: float = 0.0
    are_repeatable: bool = True
    """Whether all parts that a server was asked for may be computed twice."""

    async def compute(self, step: Step, inputs: Mapping[str, RawTensor], wanted: Sequence[str]) -> Mapping[str, RawTensor]:
        where = f"in ensemble '{self.plan.model}', part '{step.model}'"
        try:
            if (left_s := self.models.left_s(self.deadline_s)) <= 0.0:
                raise DeadlineExceeded("Deadline Exceeded")
            return await self._ask(step, inputs, wanted, left_s, where)
        except ControlPlaneError as exc:
            raise _named(exc, where) from exc

    async def _ask(
        self, step: Step, inputs: Mapping[str, RawTensor], wanted: Sequence[str], left_s: float, where: str
    ) -> Mapping[str, RawTensor]:
        pieces = part_request(step.model, step.version, inputs, wanted, self.given.parameters)
        frame = b"".join((frame_prefix(sum(map(len, pieces))), *pieces))
        self.held.take(len(frame))
        call = call_of_inputs(step.model, step.version, inputs)
        answer = await self.models.ask(self.request.part(step, frame), self.running, call, self.note, timeout_s=left_s)
        if answer.code:
            raise _PartFailed(answer.code, f"{where}: {answer.details}")
        whole = answer.body[0] if len(answer.body) == 1 else b"".join(answer.body)
        self.held.take(len(whole))
        outputs = part_outputs(message_in(whole, answer.encoding, _BOUND))
        if missing := [name for name in wanted if name not in outputs]:
            raise NotSupported(f"the part has given no output {missing[0]!r}")
        return outputs

    def note(self, at_server_s: float, part: AuthorizedRequest) -> None:
        self.units += part.expected_units
        if at_server_s > 0.0:
            self.at_servers_s += at_server_s
            self.sent_units += part.expected_units
            self.are_repeatable = self.are_repeatable and part.is_repeatable

    def charge_whole(self) -> None:
        """Have the whole charged for its parts' time at servers: not for waits for loads, nor for parts from the cache."""
        if self.sent_units:
            self.running.sent_s = max(self.running.started_s, self.models.now_s() - self.at_servers_s)
            self.running.mark_sent_in_parts(self.sent_units / self.units, 1)
            self.running.is_repeatable = self.running.is_repeatable or self.are_repeatable
            self.running.is_computed_in_part = not self.running.is_repeatable


_BOUND = InflateBound(0, "a part's answer is compressed, which nobody asked for")


def _read(request: WholeRequest[Any], call: InferCall) -> GivenTensors:
    """Read what a request gives. Raises as `ShardedModels.send` does."""
    if call.model_version not in ("", ONLY_VERSION):
        raise ModelNotFound(f"Request for unknown model: '{call.model_name}' version {call.model_version} is not found")
    if call.uses_shared_memory:
        raise NotSupported(f"model '{call.model_name}' is sharded over servers, and takes no tensors in shared memory")
    return request.given(call)


def call_of_inputs(model: str, version: str, inputs: Mapping[str, RawTensor]) -> InferCall:
    """The call of a model with these inputs, by the names that it has for them."""
    text_bytes = sum(len(raw.data) - 4 * element_count(raw.tensor.shape) for raw in inputs.values() if raw.tensor.datatype == "BYTES")
    elements = sum(element_count(raw.tensor.shape) for raw in inputs.values())
    return InferCall(model, version, "", tuple(raw.tensor for raw in inputs.values()), text_bytes=text_bytes, elements=elements)


def render_failure(code: int, text: str) -> HttpAnswer:
    """The answer where a part's had this gRPC status and text."""
    return make_answer(_HTTP_OF_PARTS_CODE.get(code, 500), orjson.dumps({"error": text}))


def _named(error: ControlPlaneError, where: str) -> ControlPlaneError:
    """Return an error with the part's name before its text; a copy, as several requests may share one."""
    own = copy(error)
    own.args = (f"{where}: {error}", *error.args[1:])
    return own
