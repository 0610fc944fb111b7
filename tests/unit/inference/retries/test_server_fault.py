from __future__ import annotations

import pytest

from control_plane.inference.retries.server_fault import client_status_in, dead_stub_model_in, dead_stub_model_of
from control_plane.metering.domain.usage import ClientStatus
from control_plane.protocols.grpc import message_answer, status_answer
from control_plane.protocols.http1 import make_answer
from tests.fakes import FakeHttpStream

_WORDS = "Stub process 'echo_0_0' is not healthy."
_FAILED = "Failed to process the request(s) for model 'caller_0_0', message: "


@pytest.mark.parametrize(
    ("answer", "model"),
    [
        pytest.param(make_answer(500, b'{"error":"Stub process \'echo_0_0\' is not healthy."}'), "echo", id="as Triton says it"),
        pytest.param(make_answer(500, memoryview(b'{"error":"Stub process \'echo_0_0\' is not healthy."}')), "echo", id="as a view"),
        pytest.param(make_answer(200, _WORDS.encode()), None, id="a text that a model answers"),
        pytest.param(make_answer(400, _WORDS.encode()), None, id="another error"),
        pytest.param(make_answer(400, b'4d\r\ndata: {"error":"%b"}' % _WORDS.encode()), "echo", id="in place of a stream"),
        pytest.param(make_answer(200, b'data: {"error":"%b"}' % _WORDS.encode()), None, id="within a stream"),
        pytest.param(make_answer(500, b'{"error":"out of memory"}'), None, id="an error of the model's"),
        pytest.param(make_answer(500, b" " * 2000 + _WORDS.encode()), None, id="far behind in a long text"),
        pytest.param(status_answer(13, _WORDS), "echo", id="grpc"),
        pytest.param(status_answer(13, f"in ensemble 'both', {_WORDS}"), "echo", id="a step of an ensemble"),
        pytest.param(
            status_answer(13, f"{_FAILED}TritonModelException: {_FAILED}{_WORDS}\n\nAt:\n  model.py(9)"), "echo", id="a model called"
        ),
        pytest.param(make_answer(500, b'{"error":{"message":"%b","code":500}}' % _WORDS.encode()), "echo", id="as OpenAI says it"),
        pytest.param(b'data: {"x":1}\n\ndata: {"error":"%b"}\n\n' % _WORDS.encode(), "echo", id="behind a piece"),
        pytest.param(status_answer(13, f"no such word: {_WORDS}"), None, id="quoted from a request"),
        pytest.param(status_answer(13, f'?\ndata: {{"error":"{_WORDS}'), None, id="quoted as an event"),
        pytest.param(make_answer(500, b'{"error":"%bValueError: %b"}' % (_FAILED.encode(), _WORDS.encode())), None, id="quoted over HTTP"),
        pytest.param(b'data: {"error":"no such word: %b"}' % _WORDS.encode(), None, id="quoted in a stream"),
        pytest.param(status_answer(3, _WORDS), None, id="another status"),
        pytest.param(message_answer(b"x"), None, id="an answer"),
        pytest.param(None, None, id="a stream"),
    ],
)
def test_a_dead_stub_is_known_by_tritons_words(answer: object, model: str | None) -> None:
    assert dead_stub_model_of(answer) == model


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        pytest.param(make_answer(200, b'{"error":"a model\'s output"}'), ClientStatus(200), id="an answer"),
        pytest.param(make_answer(400, b'{"error":"wrong shape"}'), ClientStatus(400, "wrong shape"), id="an error"),
        pytest.param(make_answer(404, b"no JSON\xff"), ClientStatus(404, "no JSON\ufffd"), id="plain words"),
        pytest.param(make_answer(500, b'["error"]'), ClientStatus(500, '["error"]'), id="JSON of another kind"),
        pytest.param(make_answer(500, b'{"error":7}'), ClientStatus(500, '{"error":7}'), id="no words"),
        pytest.param(make_answer(500, memoryview(b'{"error":"x"}')), ClientStatus(500, "x"), id="a view"),
        pytest.param(message_answer(b"x"), ClientStatus(0), id="grpc"),
        pytest.param(status_answer(5, "unknown model"), ClientStatus(5, "unknown model"), id="grpc, an error"),
        pytest.param(FakeHttpStream(), ClientStatus(200), id="a stream"),
        pytest.param("nobody's", None, id="no answer of a server's"),
    ],
)
def test_what_an_answer_tells(answer: object, told: ClientStatus | None) -> None:
    assert client_status_in(answer) == told


def test_of_a_long_error_only_the_beginning_is_read() -> None:
    told = client_status_in(make_answer(500, b"x" * 10_000_000))
    assert told is not None
    assert len(told.error) <= 1000


@pytest.mark.parametrize(
    ("instance", "model"),
    [("echo_0_0", "echo"), ("echo_12_3", "echo"), ("m_1_0_0", "m_1"), ("group_1", "group"), ("plain", "plain"), ("v2", "v2")],
)
def test_an_instance_is_named_after_its_model(instance: str, model: str) -> None:
    assert dead_stub_model_in(f"Stub process '{instance}' is not healthy.".encode()) == model


def test_a_healthy_stub_is_not_taken_for_a_dead_one() -> None:
    assert dead_stub_model_in(b"Stub process 'echo_0_0' is healthy.") is None
