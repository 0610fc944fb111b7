"""Requests have their tenant's key and a deadline, and what an answer must have tells a right one from a wrong one."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from perf.soak.asks import GRPC, GRPC_STREAM, HTTP, Ask, Asks
from perf.soak.callers import of_http, of_status, right
from perf.soak.outcomes import Outcome

DRAWN = 4_000
HTTP_ASK = Ask(HTTP, "fresh", b"", b"right")


@pytest.fixture(scope="module")
def drawn() -> list[tuple[int, Ask]]:
    asks = Asks(["tg_one", "tg_other"], Random(1))
    return [asks.hot() for _ in range(DRAWN)]


def test_requests_are_of_both_tenants_and_protocols_and_some_come_again(drawn: list[tuple[int, Ask]]) -> None:
    ways = Counter(ask.way for _, ask in drawn)
    assert 0.45 < ways[HTTP] / DRAWN < 0.55
    assert 0.03 < ways[GRPC_STREAM] / DRAWN < 0.07
    assert 0.45 < sum(tenant for tenant, _ in drawn) / DRAWN < 0.55
    assert 0.5 < len({ask.data for _, ask in drawn if ask.way == GRPC}) / ways[GRPC] < 0.95


def test_http_requests_show_their_tenants_key_once_and_say_how_long_they_wait(drawn: list[tuple[int, Ask]]) -> None:
    for tenant, ask in drawn:
        if ask.way == HTTP:
            head, _, body = ask.data.partition(b"\r\n\r\n")
            assert head.count(b"x-api-key: ") == head.count(b"\r\ntidegate-timeout-ms: 1000\r\n") == 1
            assert b"\r\nx-api-key: %b\r\n" % [b"tg_one", b"tg_other"][tenant] in head
            assert f"Content-Length: {len(body)}".encode() in head


def test_what_a_model_answers_is_found_once_in_a_right_answer(drawn: list[tuple[int, Ask]]) -> None:
    for _, ask in (each for each in drawn if each[1].way == GRPC):
        request = service_pb2.ModelInferRequest.FromString(ask.data[5:])
        tensor = request.raw_input_contents[0]
        answer = service_pb2.ModelInferResponse(model_name=request.model_name, raw_output_contents=[tensor]).SerializeToString()
        assert right(answer, ask) == (Outcome.ANSWERED, "")
        other = (np.frombuffer(tensor, np.float32) + 1).tobytes()
        assert right(answer.replace(tensor, other), ask)[0] is Outcome.ERROR


def test_a_cold_model_is_waited_for() -> None:
    _, ask = Asks(["tg_one"], Random(1)).cold()
    assert ask.is_cold
    assert b"\r\ntidegate-timeout-ms: 30000\r\n" in ask.data


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nright", Outcome.ANSWERED, id="right"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nwrong", Outcome.ERROR, id="wrong"),
        pytest.param(b"HTTP/1.1 503 \r\nRetry-After: 1\r\n\r\n{}", Outcome.REFUSED, id="refused politely"),
        pytest.param(b"HTTP/1.1 429 \r\nRetry-After: 1\r\n\r\n{}", Outcome.REFUSED, id="too many"),
        pytest.param(b"HTTP/1.1 503 \r\n\r\n{}", Outcome.ERROR, id="refused without when to come again"),
        pytest.param(b"HTTP/1.1 504 \r\n\r\n{}", Outcome.EXPIRED, id="expired"),
        pytest.param(b"HTTP/1.1 500 \r\n\r\n{}", Outcome.ERROR, id="failed"),
    ],
)
def test_http_answers(answer: bytes, outcome: Outcome) -> None:
    assert of_http(answer, HTTP_ASK)[0] is outcome


@pytest.mark.parametrize(
    ("code", "is_lost", "outcome"),
    [
        pytest.param(8, False, Outcome.REFUSED, id="RESOURCE_EXHAUSTED"),
        pytest.param(14, False, Outcome.REFUSED, id="UNAVAILABLE"),
        pytest.param(14, True, Outcome.ERROR, id="the connection broke"),
        pytest.param(4, True, Outcome.EXPIRED, id="the client's own deadline"),
        pytest.param(13, False, Outcome.ERROR, id="INTERNAL"),
    ],
)
def test_grpc_statuses(code: int, outcome: Outcome, *, is_lost: bool) -> None:
    assert of_status(code, "", is_lost=is_lost)[0] is outcome
