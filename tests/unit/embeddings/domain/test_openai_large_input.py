"""Large requests: parsing in pieces equals parsing the whole, and other large parts are refused at once."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from control_plane.core.algorithms.steps import Steps, finish
from control_plane.core.errors import InvalidRequest
from control_plane.embeddings.domain.openai_large_input import MAX_TEXT_BYTES, MAX_TEXTS, large_request_steps

TEXTS = st.text(max_size=20) | st.sampled_from(['"', "\\", '\\"', "[", "]", "{", "}", ",", ":", '"input":', "\n", "\u2028", "\0"])
INPUTS = TEXTS | st.lists(TEXTS, max_size=6) | st.lists(st.integers(0, 10**6), max_size=6) | st.lists(st.lists(st.integers(0, 99)))
OTHERS = st.recursive(st.none() | st.booleans() | TEXTS | st.integers(-5, 5), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner))
FIELDS = st.dictionaries(TEXTS, OTHERS, max_size=3)


def read(body: bytes) -> Any:
    return finish(large_request_steps(body))


@given(before=FIELDS, value=INPUTS, after=FIELDS, indent=st.booleans())
@example(before={"input": "first"}, value=["second"], after={}, indent=True)
@example(before={}, value="first", after={"input": ["second"]}, indent=False)
@example(before={"a": {"input": [1]}, "b": "input"}, value=[""], after={"c": ["input", ":"]}, indent=False)
def test_it_is_what_the_parser_makes_of_the_whole(before: dict[str, Any], value: Any, after: dict[str, Any], indent: bool) -> None:
    parts = [orjson.dumps(each, option=orjson.OPT_INDENT_2 if indent else 0).strip()[1:-1] for each in (before, {"input": value}, after)]
    body = b"{" + b",".join(part for part in parts if part.strip()) + b"}"

    for form in (body, bytearray(body)):
        assert read(form) == orjson.loads(body)


@pytest.mark.parametrize("tokens", [b"[23,-0,2999]", b"[[-0], [7]]"])
def test_a_token_may_be_written_as_minus_zero(tokens: bytes) -> None:
    """It is valid JSON, which the parser of small requests takes, too."""
    assert read(b'{"input": %b}' % tokens) == orjson.loads(b'{"input": %b}' % tokens)


def test_a_key_may_be_written_with_escapes() -> None:
    assert read(rb'{"\u0069nput" : ["a\u00e9"]}') == {"input": ["aé"]}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"input": ["a",]}', id="a-comma-too-many"),
        pytest.param(b'{"input": ["a" "b"]}', id="a-comma-too-few"),
        pytest.param(b'{"input": ["a", "b"', id="cut-off-in-the-list"),
        pytest.param(b'{"input": ["a", "b', id="cut-off-in-a-text"),
        pytest.param(b'{"input": ["a", ["b"]]}', id="texts-within-lists"),
        pytest.param(b'{"input": ["a", {"b": 1}]}', id="an-object"),
        pytest.param(b'{"input": [[1, 2.5]]}', id="a-fraction"),
        pytest.param(b'{"input": ["a\n"]}', id="a-line-break-in-a-text"),
        pytest.param(b'{"input": ["\xff"]}', id="not-utf8"),
        pytest.param(b'{"input": ["\\ud800"]}', id="half-a-surrogate-pair"),
        pytest.param(b'{"input": ["a"]}}', id="a-bracket-too-many"),
        pytest.param(b'{"input": ["a"]} x', id="more-behind-it"),
        pytest.param(b'["input": ["a"]]', id="a-list"),
        pytest.param(b'{"a": 1', id="no-end"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_what_the_parser_refuses_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read(body)


def test_more_texts_than_are_taken_are_not_all_read() -> None:
    body = b'{"input": [' + b",".join([b'"a"'] * (10 * MAX_TEXTS)) + b"]}"

    with pytest.raises(InvalidRequest, match="between 1 and 2048 texts"):
        read(body)


def test_a_text_that_is_too_long_is_refused_and_the_longest_is_not() -> None:
    longest = b"\\u0041" * MAX_TEXT_BYTES

    assert read(b'{"input": ["%b"]}' % longest) == {"input": ["A" * MAX_TEXT_BYTES]}
    with pytest.raises(InvalidRequest, match="beyond its limit"):
        read(b'{"input": ["%b"]}' % (longest * 2))


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(b'"user": "' + b"x" * 20_000 + b'"', id="a-string"),
        pytest.param(b'"user": [' + b"[]," * 10_000 + b"1]", id="a-list"),
        pytest.param(b" " * 20_000, id="white-space"),
        pytest.param(b",".join([b'"input": "a"'] * 5_000), id="many-inputs"),
    ],
)
def test_what_is_large_besides_the_input_is_refused(rest: bytes) -> None:
    with pytest.raises(InvalidRequest, match="without its input the request is larger than 16384 bytes"):
        read(b'{"input": ["a"], ' + rest + b"}")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"text": "' + b"x" * 20_000 + b'"}', id="another-field"),
        pytest.param(('{"input": "' + "x" * 20_000 + '"}').encode("utf-16"), id="utf-16"),
    ],
)
def test_a_large_body_without_an_input_says_so(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"input is missing: .* a JSON object in UTF-8") as caught:
        read(body)
    assert caught.value.field == "input"


def test_a_large_request_is_read_in_steps_none_of_which_is_long() -> None:
    texts = ["a page of text, " * 1000] * MAX_TEXTS
    longest_s, pauses, began_s = 0.0, 0, time.thread_time()

    def timed(steps: Steps[Any]) -> Steps[Any]:
        nonlocal longest_s, pauses, began_s
        while True:
            began_s = time.thread_time()
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            longest_s, pauses = max(longest_s, time.thread_time() - began_s), pauses + 1
            yield

    assert finish(timed(large_request_steps(orjson.dumps({"model": "m", "input": texts})))) == {"model": "m", "input": texts}
    assert pauses > 200
    assert longest_s < 1.0
