from __future__ import annotations

import pytest

from control_plane.codec.grpc_message import GrpcAnswer, message_answer, status_answer
from control_plane.codec.http_message import make_answer
from control_plane.codec.server_fault import dead_model_in, dead_model_of, loss_of
from control_plane.domain.inference import Loss

_WORDS = "Stub process 'echo_0_0' is not healthy."


@pytest.mark.parametrize(
    ("answer", "model"),
    [
        pytest.param(make_answer(500, b'{"error":"Stub process \'echo_0_0\' is not healthy."}'), "echo", id="as Triton says it"),
        pytest.param(make_answer(500, memoryview(b'{"error":"Stub process \'echo_0_0\' is not healthy."}')), "echo", id="as a view"),
        pytest.param(make_answer(200, _WORDS.encode()), None, id="a text that a model answers"),
        pytest.param(make_answer(400, _WORDS.encode()), None, id="another error"),
        pytest.param(make_answer(500, b'{"error":"out of memory"}'), None, id="an error of the model's"),
        pytest.param(make_answer(500, b" " * 2000 + _WORDS.encode()), None, id="far behind in a long text"),
        pytest.param(status_answer(13, _WORDS), "echo", id="grpc"),
        pytest.param(status_answer(13, f"in ensemble 'both', {_WORDS}"), "echo", id="a step of an ensemble"),
        pytest.param(status_answer(3, _WORDS), None, id="another status"),
        pytest.param(message_answer(b"x"), None, id="an answer"),
        pytest.param(None, None, id="a stream"),
    ],
)
def test_a_dead_stub_is_known_by_tritons_words(answer: object, model: str | None) -> None:
    assert dead_model_of(answer) == model


@pytest.mark.parametrize(
    ("instance", "model"),
    [("echo_0_0", "echo"), ("echo_12_3", "echo"), ("m_1_0_0", "m_1"), ("group_1", "group"), ("plain", "plain"), ("v2", "v2")],
)
def test_an_instance_is_named_after_its_model(instance: str, model: str) -> None:
    assert dead_model_in(f"Stub process '{instance}' is not healthy.".encode()) == model


def test_other_words() -> None:
    assert dead_model_in(b"Stub process 'echo_0_0' is healthy.") is None


@pytest.mark.parametrize(
    ("answer", "loss"),
    [
        (status_answer(14, "cannot connect", loss=Loss.UNSENT), Loss.UNSENT),
        (status_answer(14, "Exceeds maximum queue size"), None),
        (GrpcAnswer(0, (), (), ()), None),
        (make_answer(503, b""), None),
    ],
)
def test_only_what_our_side_says_is_a_loss(answer: object, loss: Loss | None) -> None:
    assert loss_of(answer) is loss
