"""Sampling parameters: vLLM's names and defaults, numbers also as texts, everything else refused with a clear text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from python_backends.runtime.errors import RequestError
from python_backends.text_generator.sampling_parameters import (
    MAX_STOPS,
    SamplingParameters,
    known_sampling_parameters,
    parse_sampling_parameters,
)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param({}, SamplingParameters(), id="vllm's-defaults"),
        pytest.param({"temperature": None, "seed": None}, SamplingParameters(), id="null-is-absent"),
        pytest.param({"temperature": "0.1", "top_p": "0.95"}, SamplingParameters(temperature=0.1, top_p=0.95), id="texts"),
        pytest.param({"max_tokens": 7.0, "top_k": -1, "seed": "-3"}, SamplingParameters(max_tokens=7, top_k=-1, seed=-3), id="whole"),
        pytest.param({"stop": "\n"}, SamplingParameters(stop=("\n",)), id="one-stop"),
        pytest.param({"stop": ["a", "b"], "ignore_eos": True}, SamplingParameters(stop=("a", "b"), ignore_eos=True), id="stops"),
    ],
)
def test_parameters_are_read(document: dict[str, Any], expected: SamplingParameters) -> None:
    assert parse_sampling_parameters(json.dumps(document)) == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param("", "must be a JSON object", id="empty"),
        pytest.param("[1]", "must be a JSON object", id="list"),
        pytest.param("[" * 100_000, "must be a JSON object", id="deep"),
        pytest.param('{"temprature": 1}', "no sampling parameter 'temprature': there are temperature, top_p", id="unknown"),
        pytest.param('{"temperature": NaN}', "'temperature' must be a number, 0..100, not nan", id="nan"),
        pytest.param('{"temperature": -0.1}', "'temperature' must be a number", id="cold"),
        pytest.param('{"temperature": true}', "'temperature' must be a number", id="boolean"),
        pytest.param('{"top_p": 0}', "'top_p' must be a number, more than 0 and at most 1, not 0", id="no-mass"),
        pytest.param('{"max_tokens": 0}', "'max_tokens' must be a whole number, 1..", id="none"),
        pytest.param('{"max_tokens": 1.5}', "'max_tokens' must be a whole number", id="half"),
        pytest.param('{"seed": "123456789012345678901234"}', "'seed' must be a whole number", id="too-many-digits"),
        pytest.param('{"min_tokens": 20}', "'min_tokens' is 20, more than max_tokens, 16", id="more-than-most"),
        pytest.param('{"stop": [""]}', "'stop' must be a text", id="empty-stop"),
        pytest.param('{"stop": 3}', "'stop' must be a text", id="number-as-stop"),
        pytest.param(json.dumps({"stop": ["a"] * (MAX_STOPS + 1)}), "'stop' has 17 texts, at most 16", id="many-stops"),
        pytest.param('{"ignore_eos": 1}', "'ignore_eos' must be true or false", id="no-boolean"),
    ],
)
def test_what_is_wrong_is_said(text: str, sentence: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_sampling_parameters(text)

    assert sentence in str(refused.value)
    assert len(str(refused.value)) < 400


def test_of_a_requests_own_parameters_only_those_that_are_known_count() -> None:
    said = json.dumps({"temperature": 0, "triton_enable_empty_final_response": True, "x-forwarded-for": "somebody"})

    assert known_sampling_parameters(said) == SamplingParameters(temperature=0)
    assert known_sampling_parameters("") == SamplingParameters()
