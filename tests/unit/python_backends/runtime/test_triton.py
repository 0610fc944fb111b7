"""Conversion of Triton's requests, and of answers to its responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backends.runtime.errors import (
    BackendError,
    ConfigError,
    ExecutionError,
    QueueFull,
    RequestCancelled,
    RequestError,
    RequestExpired,
)
from python_backends.runtime.execution import Answer, InferenceRequest, Tensors
from tests.unit.python_backends.fake_triton import Request, TritonError, stub


@pytest.fixture
def triton(tmp_path: Path) -> Iterator[Any]:
    with stub("text_encoder", tmp_path):
        from python_backends.runtime import triton

        yield triton


def test_a_request_becomes_a_plain_one(triton: Any) -> None:
    seen: list[InferenceRequest] = []

    def execute(requests: Sequence[InferenceRequest]) -> list[Answer]:
        seen.extend(requests)
        return [{} for _ in requests]

    array = np.ones((1, 2))
    triton.serve([Request({"X": array}, ("Y",), cancelled=True)], execute)

    assert seen[0].inputs == {"X": array}
    assert list(seen[0].requested_output_names) == ["Y"]
    assert seen[0].is_cancelled()


@pytest.mark.parametrize(
    ("given", "timeout_microseconds", "left_s"),
    [
        pytest.param("{}", 0, inf, id="it-says-nothing"),
        pytest.param("{}", 1_500_000, 1.5, id="its-own-timeout"),
        pytest.param('{"tidegate-time-left-ms":"250"}', 0, 0.25, id="the-gateway-says"),
        pytest.param('{"a":1,"tidegate-time-left-ms":"250"}', 100_000, 0.1, id="its-own-is-less"),
        pytest.param('{"tidegate-time-left-ms":"250"}', 9_000_000, 0.25, id="the-gateways-is-less"),
        pytest.param('{"tidegate-time-left-ms":"soon"}', 0, inf, id="no-number"),
        pytest.param('{"a":"\\"tidegate-time-left-ms\\":\\"1\\""}', 0, inf, id="another-parameters-text"),
    ],
)
def test_how_long_a_request_may_wait(triton: Any, given: str, timeout_microseconds: int, left_s: float) -> None:
    request = Request({"X": np.ones(1)}, ("Y",), given=given, timeout_microseconds=timeout_microseconds)

    assert triton.read(request, lambda inputs: inputs).time_left_s == left_s


def test_reading_and_answering_asks_no_question_that_costs_a_round_trip(triton: Any) -> None:
    request = Request({"X": np.ones(1)}, ("Y",))

    triton.serve([request], lambda requests: [{}])

    assert request.cancellation_checks == 0


def test_answers_become_responses_in_the_order_of_the_requests(triton: Any) -> None:
    requests = [Request({"X": np.array([value])}, ("Y",)) for value in (1, 2, 3)]

    responses = triton.serve(requests, lambda plain: [{"Y": 10 * request.inputs["X"]} for request in plain])

    assert [response.arrays()["Y"].tolist() for response in responses] == [[10], [20], [30]]


def test_a_request_that_cannot_be_prepared_does_not_reach_the_model_nor_stop_the_others(triton: Any) -> None:
    def prepare(inputs: Tensors) -> Tensors:
        if inputs["X"][0] == 2:
            raise RequestError("two is wrong")
        return inputs

    reached: list[list[int]] = []

    def execute(plain: Sequence[InferenceRequest]) -> list[Answer]:
        reached.append([int(request.inputs["X"][0]) for request in plain])
        return [{"Y": request.inputs["X"]} for request in plain]

    responses = triton.serve([Request({"X": np.array([value])}, ("Y",)) for value in (1, 2, 3)], execute, prepare)

    assert reached == [[1, 3]]
    assert responses[1].error == TritonError("two is wrong", TritonError.INVALID_ARG)
    assert [responses[index].arrays()["Y"].tolist() for index in (0, 2)] == [[1], [3]]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        pytest.param(RequestError("r"), TritonError.INVALID_ARG, id="request"),
        pytest.param(RequestCancelled("c"), TritonError.CANCELLED, id="cancelled"),
        pytest.param(RequestExpired("x"), TritonError.UNAVAILABLE, id="expired"),
        pytest.param(QueueFull("q"), TritonError.UNAVAILABLE, id="queue"),
        pytest.param(ExecutionError("e"), TritonError.INTERNAL, id="execution"),
    ],
)
def test_each_error_has_its_code(triton: Any, error: BackendError, code: int) -> None:
    assert triton.respond(error).error == TritonError(str(error), code)


def test_every_error_that_can_be_an_answer_has_a_code(triton: Any) -> None:
    # A ConfigError fails the load, where there is no request to answer.
    assert set(triton.ERROR_CODES) == set(BackendError.__subclasses__()) - {ConfigError}


def test_the_version_directory_is_in_the_models_folder(triton: Any) -> None:
    assert triton.version_directory({"model_repository": "/repository/m", "model_version": "3"}) == Path("/repository/m/3")
