"""The table of faults is total: whatever comes back is one fault, and each fault has its row."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core import errors
from control_plane.core.errors import (
    ControlPlaneError,
    DeadlineExceeded,
    InvalidRequest,
    LimitExceeded,
    ModelLoadFailed,
    ModelNotFound,
    Overloaded,
    QueryOfDeath,
    Recall,
    RecallCause,
    UpstreamFailed,
    UpstreamUnavailable,
)
from control_plane.core.infer_call import SendFailure
from control_plane.inference.retries.faults import (
    FAULTS,
    Conclusion,
    Fault,
    Resend,
    fault_in,
    fault_of_error,
    model_fault_in,
    model_fault_of_error,
)
from control_plane.protocols.grpc import GrpcStatus, message_answer, status_answer
from control_plane.protocols.http1 import HttpAnswer, make_answer
from tests.fakes import FakeHttpStream

TOLD = [
    pytest.param("Request for unknown model: 'm' is not found", 404, 5, Fault.MODEL_MISSING, id="unknown model"),
    pytest.param("Request for unknown model: 'm' has no available versions", 404, 5, Fault.MODEL_MISSING, id="unloaded"),
    pytest.param("Request for unknown model: 'm' version 3 is not at ready state", 503, 14, Fault.NOT_READY, id="not ready"),
    pytest.param("[request id: <id_unknown>] Exceeds maximum queue size", 503, 14, Fault.QUEUE_FULL, id="full queue"),
    pytest.param("[request id: 7] Request timeout expired", 503, 14, Fault.EXPIRED_IN_QUEUE, id="expired"),
    pytest.param(
        "[request id: 7] Server is stopping, scheduler for model has stopped accepting new inference requests",
        503,
        14,
        Fault.STOPPING,
        id="stopping",
    ),
    pytest.param("Server not ready", 503, 14, Fault.STOPPING, id="not started"),
    pytest.param("This API is restricted, expecting header 'k'", 403, None, Fault.RESTRICTED, id="restricted over HTTP"),
    pytest.param("This protocol is restricted, expecting header 'k'", None, 14, Fault.RESTRICTED, id="restricted over gRPC"),
    pytest.param("Request was cancelled", 400, 1, Fault.CANCELLED, id="cancelled"),
    pytest.param(
        "Failed to process the request(s) for model instance 'm_0_0', message: Stub process 'm_0_0' is not healthy.",
        500,
        13,
        Fault.DEAD_STUB,
        id="dead stub",
    ),
    pytest.param("unexpected shape for input 'X'", 400, 3, Fault.OTHER, id="a bad request"),
    pytest.param("out of memory", 500, 13, Fault.OTHER, id="an error of the model's"),
    pytest.param("busy with other things", 503, 14, Fault.OTHER, id="unavailable, in other words"),
]


@pytest.mark.parametrize(("text", "http", "grpc", "fault"), TOLD)
def test_both_protocols_tell_the_same_faults(text: str, http: int | None, grpc: int | None, fault: Fault) -> None:
    if http is not None:
        assert fault_in(make_answer(http, b'{"error":"%b"}' % text.encode())) is fault
    if grpc is not None:
        assert fault_in(status_answer(grpc, text)) is fault


@pytest.mark.parametrize(("text", "http", "grpc", "fault"), [each for each in TOLD if 503 in each.values])
def test_an_error_made_of_an_answer_tells_the_same_fault(text: str, http: int, grpc: int, fault: Fault) -> None:
    assert fault_of_error(UpstreamUnavailable(text, is_answer=True)) is fault


def test_what_was_taken_back_tells_why() -> None:
    found = {fault_of_error(UpstreamUnavailable("", recall=Recall(cause))) for cause in RecallCause}
    assert found == {Fault.SERVER_SILENT, Fault.REPLICA_SILENT, Fault.DEAD_STUB}


def test_every_fault_has_its_row() -> None:
    assert set(FAULTS) == set(Fault)
    assert {policy.resend for policy in FAULTS.values()} == set(Resend)
    assert {policy.conclusion for policy in FAULTS.values()} == set(Conclusion)


def test_every_loss_is_a_fault() -> None:
    assert [fault_in(status_answer(14, "", loss=loss)) for loss in SendFailure] == [
        Fault.NOT_SENT,
        Fault.CONNECTION_LOST,
        Fault.TIMED_OUT,
    ]


@given(text=st.text(max_size=200) | st.sampled_from([param.values[0] for param in TOLD]), status=st.integers(100, 599))
def test_whatever_http_says_is_one_fault(text: str, status: int) -> None:
    assert (fault_in(HttpAnswer(status, b"", text.encode())) in FAULTS) is (status != 200)


@pytest.mark.parametrize("code", GrpcStatus)
def test_whatever_grpc_says_is_one_fault(code: GrpcStatus) -> None:
    for text in ("", *(param.values[0] for param in TOLD)):
        assert (fault_in(status_answer(code, text)) in FAULTS) is (code is not GrpcStatus.OK), text


@pytest.mark.parametrize(
    "answer", [make_answer(200, b"Stub process 'm_0_0' is not healthy"), message_answer(b"x"), FakeHttpStream(), "answer"]
)
def test_an_answer_is_none(answer: object) -> None:
    assert fault_in(answer) is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Stub process 'm_0_0' is not healthy.", Fault.DEAD_STUB),
        ("m: Exceeds maximum queue size", Fault.QUEUE_FULL),
        ("out of memory", Fault.OTHER),
    ],
)
def test_an_error_in_place_of_a_stream_is_told_by_its_words_and_is_the_models(text: str, fault: Fault) -> None:
    answer = make_answer(400, b'data: {"error":"%b"}\n\n' % text.encode())
    assert fault_in(answer) is model_fault_in(answer) is fault
    assert fault_in(make_answer(400, b'{"error":"%b"}' % text.encode())) is Fault.OTHER


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (UpstreamUnavailable("refused", is_not_sent=True), Fault.NOT_SENT),
        (UpstreamUnavailable("closed"), Fault.CONNECTION_LOST),
        (DeadlineExceeded("late"), Fault.TIMED_OUT),
        (asyncio.CancelledError(), Fault.TIMED_OUT),
        (ModelNotFound("gone"), Fault.MODEL_MISSING),
        (UpstreamFailed("Stub process 'm_0_0' is not healthy."), Fault.DEAD_STUB),
        (UpstreamFailed("something else"), Fault.OTHER),
        (RuntimeError("the handler is closed"), Fault.DEFECT),
    ],
)
def test_errors(error: BaseException, fault: Fault) -> None:
    assert fault_of_error(error) is fault


@pytest.mark.parametrize("error", [each for each in vars(errors).values() if isinstance(each, type) and each.__base__ is ControlPlaneError])
def test_every_error_of_ours_is_a_fault(error: type[ControlPlaneError]) -> None:
    assert fault_of_error(error("what was wrong")) in FAULTS


NEVER = [Fault.EXPIRED_IN_QUEUE, Fault.RESTRICTED, Fault.CANCELLED, Fault.TIMED_OUT, Fault.OTHER]


@pytest.mark.parametrize("fault", NEVER)
def test_what_another_copy_would_answer_too_is_never_sent_to_one(fault: Fault) -> None:
    assert FAULTS[fault].resend is Resend.NEVER


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        pytest.param(make_answer(200), None, id="200"),
        pytest.param(make_answer(400, b"x"), None, id="400"),
        pytest.param(make_answer(500, b"x"), Fault.OTHER, id="500"),
        pytest.param(make_answer(404, b"x"), Fault.MODEL_MISSING, id="404"),
        pytest.param(make_answer(403, b"x"), None, id="restricted"),
        pytest.param(status_answer(GrpcStatus.INVALID_ARGUMENT, "x"), None, id="invalid argument"),
        pytest.param(status_answer(GrpcStatus.INTERNAL, "x"), Fault.OTHER, id="internal"),
        pytest.param(status_answer(GrpcStatus.CANCELLED, "x"), None, id="cancelled"),
    ],
)
def test_a_models_fault_is_none_of_its_callers(answer: object, fault: Fault | None) -> None:
    assert model_fault_in(answer) is fault


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (ModelLoadFailed("x"), Fault.MODEL_MISSING),
        (ModelNotFound("x"), Fault.MODEL_MISSING),
        (Overloaded("x"), Fault.NOT_SENT),
        (UpstreamFailed("x"), Fault.OTHER),
        (DeadlineExceeded("x"), Fault.TIMED_OUT),
        (QueryOfDeath("two processes have died under it"), Fault.DEAD_STUB),
        (InvalidRequest("x"), None),
        (LimitExceeded("x"), None),
    ],
    ids=repr,
)
def test_errors_by_which_a_model_may_be_stood_in_for(error: Exception, fault: Fault | None) -> None:
    assert model_fault_of_error(error) is fault
