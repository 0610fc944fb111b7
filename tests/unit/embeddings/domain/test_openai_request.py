"""Requests and answers of OpenAI's embeddings API."""

from __future__ import annotations

import base64
import json
from array import array
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.algorithms.steps import finish
from control_plane.core.errors import InvalidRequest, ModelNotFound
from control_plane.embeddings.domain.embedding_tensors import EmbeddedText
from control_plane.embeddings.domain.openai_large_input import MAX_TEXT_BYTES, MAX_TEXTS
from control_plane.embeddings.domain.openai_request import (
    MAX_TOKENS,
    EmbeddingsRequest,
    answer_steps,
    request_steps,
)

TOKEN_IDS = "token ids: whole numbers from 0 to 2147483647"


def read(**fields: Any) -> EmbeddingsRequest:
    return finish(request_steps(orjson.dumps({"model": "m", "input": "a", **fields})))


def tokens(*ids: int) -> bytes:
    return array("q", ids).tobytes()


@pytest.mark.parametrize(
    ("given_input", "inputs", "are_tokens"),
    [
        pytest.param("a text", (b"a text",), False, id="text"),
        pytest.param(["b", "é", "b"], (b"b", "é".encode(), b"b"), False, id="texts"),
        pytest.param([101, 7, 102], (tokens(101, 7, 102),), True, id="tokens"),
        pytest.param([[1], [2, 3]], (tokens(1), tokens(2, 3)), True, id="lists-of-tokens"),
        pytest.param("\0", (b"\0",), False, id="a-zero-byte"),
    ],
)
def test_inputs_are_read_in_each_of_their_forms(given_input: Any, inputs: tuple[bytes, ...], are_tokens: bool) -> None:
    found = read(input=given_input)

    assert (found.model, found.inputs, found.are_tokens) == ("m", inputs, are_tokens)
    assert (found.is_base64, found.dimensions) == (False, None)


def test_options_are_read_and_others_passed_over() -> None:
    found = read(encoding_format="base64", dimensions=384, user="somebody", input_type="query", extra={"a": [1]})

    assert (found.is_base64, found.dimensions) == (True, 384)
    assert read(encoding_format=None, dimensions=None) == read(encoding_format="float") == read()


@pytest.mark.parametrize(
    ("fields", "words", "field"),
    [
        pytest.param({"input": ""}, "input cannot be an empty string", "input", id="empty"),
        pytest.param({"input": ["a", ""]}, r"input\[1\] cannot be an empty string", "input", id="one-empty"),
        pytest.param({"input": []}, "between 1 and 2048 texts, got 0", "input", id="none"),
        pytest.param({"input": ["a"] * (MAX_TEXTS + 1)}, "between 1 and 2048 texts, got 2049", "input", id="too-many"),
        pytest.param({"input": None}, "you must provide an input", "input", id="missing"),
        pytest.param({"input": ["a", 1]}, r"input\[1\] must be a string as input\[0\] is", "input", id="mixed"),
        pytest.param({"input": [[1], "a"]}, r"input\[1\] must be a list of tokens as", "input", id="mixed-tokens"),
        pytest.param({"input": 3}, "^input must be a string, a list", "input", id="number"),
        pytest.param({"input": {"a": 1}}, "^input must be a string", "input", id="object"),
        pytest.param({"input": [True]}, f"^input must hold strings, or {TOKEN_IDS}", "input", id="boolean"),
        pytest.param({"input": [1, 2.0]}, TOKEN_IDS, "input", id="fraction"),
        pytest.param({"input": [-1]}, TOKEN_IDS, "input", id="negative-token"),
        pytest.param({"input": [2**31]}, TOKEN_IDS, "input", id="huge-token"),
        pytest.param({"input": [[1], ["a"]]}, rf"input\[1\] must hold {TOKEN_IDS}", "input", id="a-text-for-a-token"),
        pytest.param({"input": [[]]}, r"input\[0\] must hold between 1 and 8192 tokens, got 0", "input", id="no-tokens"),
        pytest.param({"input": [1] * (MAX_TOKENS + 1)}, "input must hold between 1 and 8192 tokens, got 8193", "input", id="many-tokens"),
        pytest.param({"input": "a" * (MAX_TEXT_BYTES + 1)}, "input is longer than 262144 bytes", "input", id="long"),
        pytest.param({"model": ""}, "must provide a model", "model", id="no-model"),
        pytest.param({"model": None}, "must provide a model", "model", id="null-model"),
        pytest.param({"model": ["m"]}, "model must be a string", "model", id="list-of-models"),
        pytest.param({"model": 1}, "model must be a string", "model", id="number-of-a-model"),
        pytest.param({"encoding_format": "int8"}, "must be 'float' or 'base64'", "encoding_format", id="encoding"),
        pytest.param({"encoding_format": ["float"]}, "must be 'float' or 'base64'", "encoding_format", id="encoding-list"),
        pytest.param({"dimensions": 0}, "a whole number above 0", "dimensions", id="no-dimensions"),
        pytest.param({"dimensions": "384"}, "a whole number above 0", "dimensions", id="dimensions-text"),
        pytest.param({"dimensions": True}, "a whole number above 0", "dimensions", id="dimensions-boolean"),
    ],
)
def test_what_is_wrong_is_said_with_its_field(fields: dict[str, Any], words: str, field: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        read(**fields)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"[]", id="list"),
        pytest.param(b'"a"', id="text"),
        pytest.param(b'{"model": "m", "input": "a"', id="cut-off"),
        pytest.param(b'{"model": "m", "input": "\xff"}', id="not-utf8"),
        pytest.param(b'{"model": "m", "input": "\\ud800"}', id="half-a-surrogate-pair"),
        pytest.param(b'{"model": "m", "input": "\xed\xa0\x80"}', id="a-surrogate-in-utf8"),
        pytest.param(b'{"model": "m", "input": [NaN]}', id="not-json"),
    ],
)
def test_what_is_no_json_object_of_unicode_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="JSON"):
        finish(request_steps(body))


@pytest.mark.parametrize("name", ["a/b", "../m", "m?x", "m\r\nX: y", "m m", ".hidden", "é", "m" * 256])
def test_a_name_that_no_model_can_have_goes_into_no_path(name: str) -> None:
    with pytest.raises(ModelNotFound, match="does not exist") as caught:
        read(model=name)
    assert len(str(caught.value)) < 200


ROWS = [EmbeddedText(array("f", values).tobytes(), count) for values, count in (([0.5, -1e-8], 3), ([1 / 3, 0.0], 4))]


def answer(rows: list[EmbeddedText], *, is_base64: bool) -> Any:
    return json.loads(finish(answer_steps(rows, model='a"b', is_base64=is_base64)))


def test_an_answer_has_openais_form() -> None:
    said = answer(ROWS, is_base64=False)

    assert {**said, "data": []} == {"object": "list", "data": [], "model": 'a"b', "usage": {"prompt_tokens": 7, "total_tokens": 7}}
    assert [{**each, "embedding": []} for each in said["data"]] == [
        {"object": "embedding", "index": index, "embedding": []} for index in (0, 1)
    ]
    assert np.array([each["embedding"] for each in said["data"]], dtype=np.float32).tobytes() == ROWS[0].values + ROWS[1].values


def test_base64_is_what_clients_decode() -> None:
    said = answer(ROWS, is_base64=True)

    assert b"".join(base64.b64decode(each["embedding"]) for each in said["data"]) == ROWS[0].values + ROWS[1].values


@given(st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3), min_size=1, max_size=5))
def test_numbers_as_text_are_the_same_numbers(rows: list[list[float]]) -> None:
    embedded = [EmbeddedText(array("f", row).tobytes(), 1) for row in rows]

    said = answer(embedded, is_base64=False)

    assert [np.array(each["embedding"], dtype=np.float32).tobytes() for each in said["data"]] == [each.values for each in embedded]


def test_a_large_answer_is_written_in_steps() -> None:
    steps = answer_steps(ROWS * 1024, model="m", is_base64=True)

    assert sum(1 for _ in steps) == 2048 // 128
