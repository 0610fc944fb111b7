"""Tests of requests to sharded models: what their parts are asked, who may ask, what is charged and counted, and what a failure says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import (
    ControlPlaneError,
    DeadlineExceeded,
    InvalidRequest,
    LimitExceeded,
    ModelNotFound,
    NotSupported,
    Overloaded,
    PermissionDenied,
)
from control_plane.core.infer_call import InferCall, Outcome
from control_plane.core.principal import Principal
from control_plane.core.scope import Scopes, parse_scope
from control_plane.core.tensor import RawTensor, Tensor
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.inference.routes.targets import Arm
from control_plane.inference.sharded_models import ShardedModels, render_failure
from control_plane.objects.domain.route import Route, Target
from control_plane.objects.domain.tenant import Tenant
from control_plane.protocols.grpc import GrpcAnswer, GrpcStatus, message_answer, status_answer
from control_plane.protocols.kserve.ensemble_json import GivenTensors
from control_plane.protocols.kserve.ensemble_proto import read_given, render_answer
from control_plane.sharding.domain.plan import Step
from tests.aio import run, run_in_virtual_time, settle
from tests.unit.inference.governed_bench import Bench, Dispatch, Request, now_s
from tests.unit.sharding.domain.configs import CHAIN

_WHOLE_ONLY = Principal("team", "k1", Scopes((parse_scope("infer:whole"),)))
_ROUTE = Route("r", "stable", targets=(Target("whole", 5000),))
_ARM = Arm(_ROUTE, InferCall("whole", "", "", ()), InferCall("stable", "", "", ()), 7, True)
_X = RawTensor(Tensor("X", "FP32", (2, 1)), bytes(8))


class _Part(Request):
    """The request to a part, whose answer is its input under the name of its output."""

    def __init__(self, step: Step, frame: bytes, whole: _Whole) -> None:
        super().__init__(whole.principal)
        self.step, self.frame, self.whole = step, frame, whole

    async def send(self, server: Any, *, timeout_s: float) -> GrpcAnswer:
        given = read_given(self.frame[5:])
        self.whole.asked.append((self.step.model, tuple(given.inputs), given.outputs))
        self.whole.left_s.append(timeout_s)
        await asyncio.sleep(self.whole.takes_s)
        if (error := self.whole.errors.get(self.step.model)) is not None:
            if isinstance(error, Exception):
                raise error
            return error
        (raw,) = given.inputs.values()
        return message_answer(b"".join(render_answer(self.step.model, "1", "", [(name, raw) for name in given.outputs])))

    def outcome(self, answer: Any) -> Outcome:
        return Outcome.UPSTREAM_ERROR if answer.code else Outcome.ANSWERED


class _Whole(Request):
    """A caller's request, as `inference/requests.WholeRequest`."""

    def __init__(self, principal: Principal = _WHOLE_ONLY, *, name: str = "whole", timeout_s: float | None = None) -> None:
        super().__init__(principal, timeout_s=timeout_s)
        self.name = name
        self.asked: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = []
        self.left_s: list[float] = []
        self.errors: dict[str, GrpcAnswer | Exception] = {}
        self.takes_s = 0.0
        self.cached = set[str]()
        """Parts whose answers are taken for hits."""
        self.version, self.in_memory, self.given_ = "", False, GivenTensors({"X": _X}, (), {}, {})
        self.failed: tuple[int, str] | None = None

    def read(self) -> Steps[InferCall]:
        yield from ()
        return InferCall(self.name, self.version, self.id, (_X.tensor,), uses_shared_memory=self.in_memory, elements=2)

    def given(self, call: InferCall) -> GivenTensors:
        return self.given_

    def part(self, step: Step, frame: bytes) -> Any:
        return _Part(step, frame, self)

    def answer_of_parts(self, call: InferCall, version: str, given: GivenTensors, outputs: Sequence[tuple[str, RawTensor]]) -> Any:
        return {name: bytes(raw.data) for name, raw in outputs}

    def failed_by(self, code: int, text: str) -> Any:
        self.failed, self.answered = (code, text), Outcome.UPSTREAM_ERROR
        return "failed"


class _Fleet(Dispatch):
    """Fake dispatcher of a fleet in which `whole` is sharded."""

    sharded: ShardedModels
    repeatable: frozenset[str] = frozenset()
    """Parts that may be computed twice."""

    async def send(self, request: Any, call: InferCall, *, timeout_s: float, running: Any = None) -> Any:
        if call.model_name == "whole":
            return await self.sharded.send(request, call, CHAIN, timeout_s=timeout_s, running=running)
        running.is_repeatable = call.model_name in self.repeatable
        answer = await super().send(request, call, timeout_s=timeout_s, running=running)
        running.is_cache_hit = call.model_name in request.whole.cached
        return answer


def _bench(*tenants: Tenant, **limits: Any) -> tuple[Bench, BodyBudget]:
    fleet, budget = _Fleet(), BodyBudget(2**20)
    bench = Bench(*tenants, dispatch=fleet, **limits)
    bench.service._allow_shared_memory = True
    for name in ("whole", "front", "back"):
        bench.service.models.answered(name)
    fleet.sharded = ShardedModels(bench.service, budget, max_bytes=2**20, now_s=now_s)
    return bench, budget


def test_parts_are_asked_in_order_by_their_own_names_of_tensors() -> None:
    async def test() -> None:
        (bench, _), request = _bench(), _Whole()
        assert await bench.service.infer(request) == {"Y": _X.data}
        assert request.asked == [("front", ("x",), ("h",)), ("back", ("h",), ("y",))]

    run(test())


def test_a_key_for_the_whole_needs_no_right_to_its_parts_and_gets_none() -> None:
    async def test() -> None:
        bench, _ = _bench()
        assert await bench.service.infer(_Whole()) == {"Y": _X.data}
        with pytest.raises(PermissionDenied):
            await bench.service.infer(_Whole(name="front"))

    run(test())


def test_the_whole_is_counted_and_charged_once_and_its_parts_are_not() -> None:
    async def test() -> None:
        bench, _ = _bench()
        request = _Whole()
        request.takes_s = 0.1
        await bench.service.infer(request)
        assert [(each[1], each[2]) for each in bench.meter.added] == [("whole", Outcome.ANSWERED)]
        assert bench.meter.added[0][5] == 2.0  # units of the whole: its steps' together
        assert bench.event.compute_units == 2.0
        assert bench.service.in_flight == 0

    run_in_virtual_time(test())


def test_a_part_from_the_cache_is_not_charged() -> None:
    async def test() -> None:
        bench, _ = _bench()
        request = _Whole()
        request.takes_s, request.cached = 0.1, {"front"}
        await bench.service.infer(request)
        assert bench.event.compute_units == 1.0  # one of two equal parts
        both = _Whole()
        both.cached = {"front", "back"}
        await bench.service.infer(both)
        assert bench.meter.events[-1].compute_units == 0.0

    run_in_virtual_time(test())


def test_a_part_takes_no_further_place_in_the_tenants_limits() -> None:
    async def test() -> None:
        bench, _ = _bench(Tenant("team", concurrency=2))
        first, second = _Whole(), _Whole()
        first.takes_s = second.takes_s = 1.0
        async with asyncio.TaskGroup() as tasks:
            both = [tasks.create_task(bench.service.infer(each)) for each in (first, second)]
            await settle()
            with pytest.raises(LimitExceeded, match="2"):
                await bench.service.infer(_Whole())
        assert [each.result() for each in both] == [{"Y": _X.data}] * 2
        assert await bench.service.infer(_Whole()) == {"Y": _X.data}  # all places were given back

    run_in_virtual_time(test())


def test_one_deadline_holds_for_all_parts() -> None:
    async def test() -> None:
        (bench, _), request = _bench(), _Whole(timeout_s=1.0)
        request.takes_s = 0.6
        await bench.service.infer(request)
        assert request.left_s == pytest.approx([1.0, 0.4])
        late = _Whole(timeout_s=1.0)
        late.takes_s = 1.0
        with pytest.raises(DeadlineExceeded, match="in ensemble 'whole', part 'back'"):
            await bench.service.infer(late)
        assert [model for model, _, _ in late.asked] == ["front"]

    run_in_virtual_time(test())


def test_a_part_that_answers_with_an_error_is_named() -> None:
    async def test() -> None:
        (bench, budget), request = _bench(), _Whole()
        request.errors["back"] = status_answer(3, "no such shape")
        assert await bench.service.infer(request) == "failed"
        assert request.failed == (3, "in ensemble 'whole', part 'back': no such shape")
        assert budget.held_bytes == 0

    run(test())


def test_an_error_on_the_way_to_a_part_names_it_and_stays_what_it_is() -> None:
    async def test() -> None:
        (bench, _), request = _bench(), _Whole()
        shared = request.errors["front"] = Overloaded("no room", retry_after_s=7.0)
        with pytest.raises(Overloaded, match="in ensemble 'whole', part 'front': no room") as raised:
            await bench.service.infer(request)
        assert raised.value.retry_after_s == 7.0
        assert str(shared) == "no room"  # other requests may have the same one

    run(test())


def test_a_caller_that_leaves_cancels_the_part_under_way() -> None:
    async def test() -> None:
        (bench, budget), request = _bench(), _Whole()
        request.takes_s = 100.0
        async with asyncio.TaskGroup() as tasks:
            leaving = tasks.create_task(bench.service.infer(request))
            await settle()
            leaving.cancel()
        assert [model for model, _, _ in request.asked] == ["front"]
        assert (bench.service.in_flight, budget.held_bytes) == (0, 0)
        assert [(each[1], each[2]) for each in bench.meter.added] == [("whole", Outcome.ABANDONED)]

    run_in_virtual_time(test())


class _Local:
    """Another region's request, as `inference/dispatch/region_failover` lets it be computed here; keeps what was asked."""

    running: Any = None

    async def answer(self, request: Any, running: Any, timeout_s: float, here: Callable[[float], Any]) -> Any:
        self.running = running
        running.permit.mark_as_guest()
        return await here(timeout_s)


def test_a_part_of_another_regions_request_never_waits_here() -> None:
    async def test() -> None:
        bench, _ = _bench(max_in_flight_per_model=1)
        (guests := copy(bench.service)).region_failover = _Local()  # type: ignore[assignment]
        assert await guests.infer(_Whole()) == {"Y": _X.data}
        ours, request = bench.service.running.governance.admission.admit("team"), _Whole()
        assert ours is not None
        request.takes_s, began_s = 1.0, now_s()
        async with asyncio.TaskGroup() as tasks:
            theirs = tasks.create_task(_refused(guests.infer(request)))
            await settle()
            await ours.acquire_slot("back", cost_units=1.0, deadline_s=now_s() + 10.0)  # while the front is computed
        assert (theirs.result(), now_s() - began_s) == ("in ensemble 'whole', part 'back'", 1.0)
        ours.release()
        assert await guests.infer(_Whole()) == {"Y": _X.data}  # all places were given back

    run_in_virtual_time(test())


async def _refused(answer: Awaitable[Any]) -> str:
    with pytest.raises(Overloaded) as refused:
        await answer
    return str(refused.value).partition(": ")[0]


@pytest.mark.parametrize("repeatable", [{"front", "back"}, {"front"}, set()], ids=["all", "one", "none"])
def test_what_a_refused_part_leaves_behind_says_whether_the_whole_may_be_asked_again(repeatable: set[str]) -> None:
    async def test() -> None:
        bench, _ = _bench()
        bench.service.dispatch.repeatable = frozenset(repeatable)  # type: ignore[attr-defined]
        (guests := copy(bench.service)).region_failover = local = _Local()  # type: ignore[assignment]
        request = _Whole()
        refusal = Overloaded("no room")
        request.takes_s, request.errors["back"] = 0.1, refusal
        with pytest.raises(Overloaded):
            await guests.infer(request)
        assert local.running.sent_s is not None
        assert local.running.is_repeatable is (repeatable == {"front", "back"})
        may_fall_back = bench.service.fallback.observe_and_may_fall_back(_ARM, refusal, local.running, inf)
        assert may_fall_back is (repeatable == {"front", "back"})

    run_in_virtual_time(test())


def test_work_in_the_background_does_not_wait_for_itself() -> None:
    async def test() -> None:
        bench, _ = _bench()
        rights = bench.service._governance
        jobs = copy(bench.service)
        below = replace(rights, admission=rights.admission.in_background())
        jobs._governance, jobs.running = below, copy(jobs.running)
        jobs.running.governance = below
        caller, job = _Whole(), _Whole()
        caller.takes_s = 100.0
        async with asyncio.TaskGroup() as tasks:
            busy = tasks.create_task(bench.service.infer(caller))
            await settle()
            assert await jobs.infer(job) == {"Y": _X.data}  # with callers, one piece of work at a time is under way
            busy.cancel()

    run_in_virtual_time(test())


def _of_version(request: _Whole) -> None:
    request.version = "2"


def _in_memory(request: _Whole) -> None:
    request.in_memory = True


def _wrong_output(request: _Whole) -> None:
    request.given_ = GivenTensors({"X": _X}, ("W",), {}, {})


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        pytest.param(_of_version, ModelNotFound, "'whole' version 2 is not found", id="another version"),
        pytest.param(_in_memory, NotSupported, "takes no tensors in shared memory", id="shared memory"),
        pytest.param(_wrong_output, InvalidRequest, "unexpected inference output 'W'", id="an unknown output"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_before_any_part_is_asked(
    change: Callable[[_Whole], None], error: type[ControlPlaneError], text: str
) -> None:
    async def test() -> None:
        (bench, _), request = _bench(), _Whole()
        change(request)
        with pytest.raises(error, match=text):
            await bench.service.infer(request)
        assert request.asked == []

    run(test())


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (GrpcStatus.INVALID_ARGUMENT, 400),
        (GrpcStatus.RESOURCE_EXHAUSTED, 413),
        (GrpcStatus.UNIMPLEMENTED, 501),
        (GrpcStatus.DEADLINE_EXCEEDED, 504),
        (GrpcStatus.INTERNAL, 500),
    ],
)
def test_the_failure_of_a_part_has_the_status_that_triton_gives_it_over_http(code: GrpcStatus, status: int) -> None:
    answer = render_failure(code, "why")
    assert (answer.status, answer.body) == (status, b'{"error":"why"}')
