from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import (
    ControlPlaneError,
    DeadlineExceeded,
    InvalidRequest,
    NotSupported,
    PayloadTooLarge,
    PermissionDenied,
    UnparsableRequest,
    UpstreamUnavailable,
)
from control_plane.core.infer_call import Frontend, InferCall, Outcome
from control_plane.core.principal import ANONYMOUS
from control_plane.inference.governance import Governance
from control_plane.inference.inference import InferenceService
from control_plane.inference.model_configuration.time_left import TimeLeft
from control_plane.models.fingerprints import Fingerprints
from control_plane.protocols.http1 import HttpAnswer, make_answer
from control_plane.triton.ports import HttpStream, Slot, Upstream
from control_plane.triton.servers import Servers
from tests.aio import run, settle
from tests.fakes import FakeHttpStream, FakeRecorder, FakeUpstream
from tests.fakes.governance import FakeMeter, governance
from tests.fakes.triton.unparsed_request import FakeUnparsedRequest

DEFAULT_S = 30.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Request(FakeUnparsedRequest):
    """Fake `InferRequest` whose every step can be made to fail."""

    frontend = Frontend.GRPC
    principal = ANONYMOUS

    def __init__(self, *, timeout_s: float | None = None, answer: Callable[[], str] = lambda: "answer") -> None:
        self.timeout_s = timeout_s
        self.answer = answer
        self.read_error: Exception | None = None
        self.pauses = 0
        self.uses_shared_memory = False
        self.slot: Slot | None = None
        self.outcome_of_answer = Outcome.ANSWERED
        self.sent_to: list[tuple[Upstream, float]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def read_at_once(self) -> None: ...

    def read(self) -> Steps[InferCall]:
        if self.read_error is not None:
            raise self.read_error
        for _ in range(self.pauses):
            yield
        return InferCall("m", "", "", (), uses_shared_memory=self.uses_shared_memory)

    def readdress(self, model_name: str, model_version: str) -> None:
        self.with_model = (model_name, model_version)

    async def send(self, server: Upstream, *, timeout_s: float) -> str:
        self.sent_to.append((server, timeout_s))
        await self.may_answer.wait()
        return self.answer()

    def outcome(self, answer: str) -> Outcome:
        return self.outcome_of_answer


class Bench:
    def __init__(self) -> None:
        self.servers, self.upstream, self.recorder, self.clock = Servers(), FakeUpstream(), FakeRecorder(), Clock()
        self.servers.up(self.upstream)
        self.meter = FakeMeter()
        self.service = self.serving(governance(now_s=self.clock, meter=self.meter))

    def serving(self, governance: Governance, *, allow_shared_memory: bool = False) -> InferenceService:
        service = InferenceService(
            servers=self.servers,
            recorder=self.recorder,
            governance=governance,
            default_timeout_s=DEFAULT_S,
            allow_shared_memory=allow_shared_memory,
            now_s=self.clock,
        )
        service.models.answered("m")  # there is such a model
        return service

    def infer(self, request: Request) -> str:
        return run(self.service.infer(request))


def raising(error: Exception) -> Callable[[], str]:
    def answer() -> str:
        raise error

    return answer


def test_sends_to_the_server_that_is_up_and_returns_its_answer() -> None:
    bench, request = Bench(), Request()
    assert bench.infer(request) == "answer"
    assert request.sent_to == [(bench.upstream, DEFAULT_S)]


@pytest.mark.parametrize("outcome", Outcome)
def test_records_what_the_frontend_makes_of_the_answer(outcome: Outcome) -> None:
    bench, request = Bench(), Request()
    request.outcome_of_answer = outcome
    bench.infer(request)
    assert [(each.model_name, each.frontend, each.outcome) for each in bench.recorder.records] == [("m", Frontend.GRPC, outcome)]


@pytest.mark.parametrize(
    ("given_s", "sent_s"),
    [
        pytest.param(None, DEFAULT_S, id="none leaves the default"),
        pytest.param(0.25, 0.25, id="its own"),
        pytest.param(3600.0, 3600.0, id="longer than the default"),
        pytest.param(0.0, 0.0, id="none left is not the same as none given"),
    ],
)
def test_the_callers_time_bounds_the_call(given_s: float | None, sent_s: float) -> None:
    bench, request = Bench(), Request(timeout_s=given_s)
    bench.infer(request)
    assert request.sent_to == [(bench.upstream, sent_s)]


@pytest.mark.parametrize(
    ("given_s", "wants", "tells", "asked"),
    [
        pytest.param(2.0, "true", True, 1, id="its model wants to know"),
        pytest.param(2.0, "false", False, 1, id="its model does not"),
        pytest.param(None, "true", False, 0, id="its caller names no time"),
    ],
)
async def test_a_request_with_a_deadline_tells_its_time_left_where_its_model_is_known_to_want_that(
    given_s: float | None, wants: str, tells: bool, asked: int
) -> None:
    bench, requests = Bench(), [Request(timeout_s=given_s) for _ in range(2)]
    bench.upstream.http.answer = lambda request: make_answer(200, b'{"parameters":{"time_left":{"string_value":"%b"}}}' % wants.encode())
    time_left = TimeLeft(bench.service.dispatch, Fingerprints(), is_loaded=lambda name: name == "m", now_s=bench.clock)
    bench.service.time_left = time_left

    async with asyncio.TaskGroup() as tasks:
        asks = tasks.create_task(time_left.run())
        for request in requests:
            await settle()
            await bench.service.infer(request)
        asks.cancel()

    assert [request.slot is not None and request.slot.tells_time_left for request in requests] == [False, tells]
    assert len(bench.upstream.http.requests) == asked


@pytest.mark.parametrize("error", [InvalidRequest("x"), UnparsableRequest("x"), PayloadTooLarge("x"), NotSupported("x")])
def test_a_request_that_cannot_be_read_is_refused_and_never_sent(error: ControlPlaneError) -> None:
    bench, request = Bench(), Request()
    request.read_error = error
    with pytest.raises(type(error)):
        bench.infer(request)
    assert request.sent_to == []
    assert [(each.model_name, each.outcome) for each in bench.recorder.records] == [("m", Outcome.REFUSED)]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        pytest.param(UpstreamUnavailable("x"), Outcome.UNAVAILABLE, id="triton unavailable"),
        pytest.param(DeadlineExceeded("x"), Outcome.DEADLINE_EXCEEDED, id="deadline"),
        pytest.param(RuntimeError("x"), Outcome.FAILED, id="a defect"),
        pytest.param(TimeoutError("x"), Outcome.FAILED, id="an exception that no adapter may let through"),
    ],
)
def test_a_call_that_fails_is_recorded_once_and_raised(error: Exception, outcome: Outcome) -> None:
    bench = Bench()
    with pytest.raises(type(error)):
        bench.infer(Request(answer=raising(error)))
    assert bench.recorder.outcomes == [outcome]


def test_a_defect_in_reading_is_recorded_as_one() -> None:
    bench, request = Bench(), Request()
    request.read_error = KeyError("x")
    with pytest.raises(KeyError):
        bench.infer(request)
    assert bench.recorder.outcomes == [Outcome.FAILED]


def test_without_a_server_it_is_unavailable_under_the_models_name() -> None:
    bench, request = Bench(), Request()
    bench.servers.down("Triton is restarting")
    with pytest.raises(UpstreamUnavailable, match="Triton is restarting; try again shortly"):
        bench.infer(request)
    assert [(each.model_name, each.outcome) for each in bench.recorder.records] == [("m", Outcome.UNAVAILABLE)]


async def test_duration_is_from_the_whole_request_to_its_answer() -> None:
    bench, request = Bench(), Request()
    request.may_answer.clear()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.service.infer(request))
        await settle()
        bench.clock.now_s += 1.5
        request.may_answer.set()
    assert [each.duration_s for each in bench.recorder.records] == [1.5]


async def test_a_caller_that_leaves_is_recorded_once_as_abandoned() -> None:
    bench, request = Bench(), Request()
    request.may_answer.clear()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(bench.service.infer(request))
        await settle()
        assert bench.service.in_flight == 1
        task.cancel()
    assert task.cancelled()
    assert bench.recorder.outcomes == [Outcome.ABANDONED]
    assert bench.service.in_flight == 0


async def test_a_caller_that_leaves_as_the_answer_arrives_is_recorded_once() -> None:
    bench, request = Bench(), Request()
    request.may_answer.clear()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(bench.service.infer(request))
        await settle()
        request.may_answer.set()
        task.cancel()
    assert bench.recorder.outcomes == [Outcome.ABANDONED]


async def test_a_caller_that_leaves_before_it_began_leaves_nothing() -> None:
    bench = Bench()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.service.infer(Request())).cancel()
    assert bench.recorder.records == []
    assert bench.service.in_flight == 0


async def test_in_flight_counts_those_between_arrival_and_answer() -> None:
    bench = Bench()
    requests = [Request() for _ in range(3)]
    async with asyncio.TaskGroup() as tasks:
        for request in requests:
            request.may_answer.clear()
            tasks.create_task(bench.service.infer(request))
        await settle()
        seen = [bench.service.in_flight]
        for request in requests:
            request.may_answer.set()
            await settle()
            seen.append(bench.service.in_flight)
    assert seen == [3, 2, 1, 0]


class TestReading:
    async def test_a_long_one_lets_others_run_in_between(self) -> None:
        bench, request, turns = Bench(), Request(), 0
        request.pauses = 100_000
        call = asyncio.get_running_loop().create_task(bench.service.infer(request))
        while not call.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 5

    async def test_one_that_is_left_in_the_middle_is_abandoned(self) -> None:
        bench, request = Bench(), Request()
        request.pauses = 10**9
        call = asyncio.get_running_loop().create_task(bench.service.infer(request))
        await settle()
        call.cancel()
        await asyncio.wait([call])
        assert bench.recorder.outcomes == [Outcome.ABANDONED]
        assert bench.service.in_flight == 0


@pytest.mark.parametrize("is_allowed", [False, True])
def test_shared_memory_is_used_only_where_it_is_allowed(is_allowed: bool) -> None:
    bench, request = Bench(), Request()
    bench.service = bench.serving(governance(), allow_shared_memory=is_allowed)
    request.uses_shared_memory = True
    if is_allowed:
        assert bench.infer(request) == "answer"
    else:
        with pytest.raises(PermissionDenied, match="--allow-shared-memory"):
            bench.infer(request)
        assert request.sent_to == []
        assert [(each.model_name, each.outcome) for each in bench.recorder.records] == [("m", Outcome.REFUSED)]


class Generate(Request):
    """Fake `GenerateRequest`."""

    frontend = Frontend.HTTP
    sends_whole = False

    def __init__(self, stream: HttpAnswer | HttpStream) -> None:
        super().__init__()
        self.given = stream

    async def stream(self, server: Upstream, *, timeout_s: float) -> HttpAnswer | HttpStream:
        await self.send(server, timeout_s=timeout_s)
        return self.given

    def outcome(self, answer: object) -> Outcome:
        return self.outcome_of_answer


class TestGenerate:
    async def _open(self, bench: Bench, given: FakeHttpStream) -> HttpStream:
        answer = await bench.service.generate(Generate(given))
        assert not isinstance(answer, HttpAnswer)
        assert (answer.status, answer.head) == (given.status, given.head)
        assert (bench.service.in_flight, bench.recorder.records) == (1, []), "it goes on"
        return answer

    def test_a_whole_answer_is_recorded_at_once(self) -> None:
        bench, answer = Bench(), make_answer(404)
        request = Generate(answer)
        request.outcome_of_answer = Outcome.MODEL_NOT_FOUND
        assert run(bench.service.generate(request)) is answer
        assert (bench.recorder.outcomes, bench.service.in_flight) == ([Outcome.MODEL_NOT_FOUND], 0)

    async def test_a_stream_is_recorded_when_it_has_ended(self) -> None:
        bench, given = Bench(), FakeHttpStream().put(b"a", b"b", None)
        stream = await self._open(bench, given)
        bench.clock.now_s += 5.0
        assert [await stream.receive() for _ in range(3)] == [b"a", b"b", None]
        stream.close()
        stream.close()
        assert [(each.outcome, each.duration_s) for each in bench.recorder.records] == [(Outcome.ANSWERED, 5.0)]
        assert (bench.service.in_flight, given.closed.is_set()) == (0, True)

    async def test_one_that_is_closed_before_its_end_is_abandoned(self) -> None:
        bench, given = Bench(), FakeHttpStream().put(b"a", b"b", None)
        stream = await self._open(bench, given)
        await stream.receive()
        stream.close()
        assert (bench.recorder.outcomes, given.closed.is_set()) == ([Outcome.ABANDONED], True)

    @pytest.mark.parametrize(
        ("error", "outcome"), [(UpstreamUnavailable("gone"), Outcome.UNAVAILABLE), (DeadlineExceeded("slow"), Outcome.DEADLINE_EXCEEDED)]
    )
    async def test_one_that_breaks_off_is_recorded_as_what_broke_it(self, error: ControlPlaneError, outcome: Outcome) -> None:
        bench = Bench()
        stream = await self._open(bench, FakeHttpStream().put(b"a", error))
        await stream.receive()
        with pytest.raises(type(error)):
            await stream.receive()
        stream.close()
        assert bench.recorder.outcomes == [outcome]

    def test_one_that_is_refused_is_recorded_and_never_sent(self) -> None:
        bench, request = Bench(), Generate(make_answer(200))
        request.read_error = InvalidRequest("no")
        with pytest.raises(InvalidRequest):
            run(bench.service.generate(request))
        assert (bench.recorder.outcomes, request.sent_to, bench.service.in_flight) == ([Outcome.REFUSED], [], 0)
