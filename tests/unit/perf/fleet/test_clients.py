from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from random import Random

import httpx
import pytest

from control_plane.fleet.simulation.workload import Request
from perf.fleet.clients import Answers, ask, replay, text_of
from perf.fleet.models import ENCODERS, INPUT
from tests.http_server import AskedRequest, http_server


def test_texts_fit_every_model_and_are_the_same_each_time() -> None:
    random, again = Random(1), Random(1)
    for _ in range(50):
        text = text_of(random)
        assert text == text_of(again)
        (tensor,) = json.loads(text)["inputs"]
        assert tensor["name"] == INPUT
        assert tensor["shape"] == [1, len(tensor["data"])]
        assert 8 <= len(tensor["data"]) <= 64
        assert max(tensor["data"]) < min(encoder.vocabulary for encoder in ENCODERS)


def test_percentiles_are_of_what_was_answered() -> None:
    answers = Answers([0.005, 0.001, 0.002, 0.004, 0.003])
    assert [answers.percentile_ms(percent) for percent in (1, 50, 60, 61, 100)] == pytest.approx([1, 3, 3, 4, 5])
    assert str(Answers().percentile_ms(50)) == "nan"


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        pytest.param(httpx.Response(200, json={"outputs": [{"name": "EMBEDDING", "data": [1.0]}]}), "", id="answered"),
        pytest.param(httpx.Response(200, json={"error": "no"}), "200 ", id="answered with something else"),
        pytest.param(httpx.Response(503, text="no room"), "503 no room", id="refused"),
        pytest.param(None, "ConnectError", id="not reached"),
    ],
)
def test_what_is_wrong_with_an_answer_is_told(answer: httpx.Response | None, wrong: str) -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        assert str(request.url) == "http://there/v2/models/m/infer"
        if answer is None:
            raise httpx.ConnectError("nobody there")
        return answer

    async def asked() -> str:
        async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as session:
            return await ask(session, "http://there", "m", b"{}")

    told = asyncio.run(asked())
    assert told.startswith(wrong)
    assert bool(told) == bool(wrong)


def answered(asked: AskedRequest) -> None:
    """A request takes 0.3 s, but `refused` is refused at once."""
    is_refused = "/refused/" in asked.path
    time.sleep(0 if is_refused else 0.3)
    asked.answer(503 if is_refused else 200, b"no room" if is_refused else b'{"outputs": [{"name": "EMBEDDING"}]}')


@pytest.fixture
def url() -> Iterator[str]:
    with http_server(answered) as url:
        yield url


def test_each_request_is_sent_at_its_time_whatever_became_of_those_before(url: str) -> None:
    began_s: list[float] = []

    @asynccontextmanager
    async def serving(request: Request) -> AsyncIterator[str]:
        began_s.append(time.monotonic())
        yield url

    trace = [Request(at_s, model, 0.0) for at_s, model in ((0.0, "m"), (0.1, "refused"), (0.2, "m"))]
    answers = asyncio.run(replay(trace, serving))
    assert len(answers.latencies_s) == 2
    assert min(answers.latencies_s) >= 0.3
    assert [len(taken) for taken in answers.asked_s.values()] == [2]
    assert all(0.3 <= taken_s <= max(answers.latencies_s) for taken_s in answers.asked_s["m"])
    assert answers.failures == ["refused: 503 no room"]
    assert 0.15 < began_s[2] - began_s[0] < 60
