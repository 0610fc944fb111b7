from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.algorithms.steps import finish
from control_plane.core.errors import PayloadTooLarge, UnparsableRequest
from control_plane.protocols.kserve.requests.body_limits import BodyLimits
from control_plane.protocols.kserve.requests.json_outline import outline_steps

_SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "[", "]", "{", "}", '"', "\\", 'a"[\\', "é", ":"])
_LONG = st.sampled_from([[1] * 600, ["a]"] * 300, "x" * 2000, '"\\' * 800, [[0, [1]]] * 300, [{"a": 1}] * 300])
_VALUES: st.SearchStrategy[Any] = st.recursive(
    _SCALARS | _LONG,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", 'c"', "d\\"]), inner, max_size=3),
    max_leaves=12,
)


LIMITS = BodyLimits()


def elements(value: Any) -> int:
    """Count the elements of an array, those of nested arrays included."""
    return sum(map(elements, value)) if isinstance(value, list) else 1


def outline(text: bytes | str) -> bytes:
    return finish(outline_steps(text.encode() if isinstance(text, str) else text, LIMITS))


def is_long(value: Any) -> bool:
    return len(json.dumps(value)) > 1024 and (isinstance(value, str) or (isinstance(value, list) and "{" not in _outside_strings(value)))


def _outside_strings(value: Any) -> str:
    if isinstance(value, list):
        return "".join(map(_outside_strings, value))
    return "{" if isinstance(value, dict) else ""


def expected(value: Any) -> Any:
    """The expected outline, computed from the parsed text."""
    if is_long(value):
        return "" if isinstance(value, str) else elements(value)
    if isinstance(value, dict):
        return {name: expected(inner) for name, inner in value.items()}
    return [expected(inner) for inner in value] if isinstance(value, list) else value


@given(value=_VALUES)
def test_is_the_text_without_its_long_arrays_and_strings(value: Any) -> None:
    try:
        found = outline(json.dumps(value))
    except UnparsableRequest as exc:
        assert "both data and objects" in str(exc)  # noqa: PT017
        return
    assert json.loads(found) == expected(value)


@given(text=st.text(st.sampled_from('[]{}",:1\\ a'), max_size=60))
def test_any_short_text_is_its_own_outline(text: str) -> None:
    try:
        assert outline(text) == text.encode()
    except UnparsableRequest:
        assert text.count('"') > 0


@pytest.mark.parametrize("value", ["a" * 3_000_000, '\\"' * 700_000, "é" * 700_000], ids=["plain", "escapes", "beyond ASCII"])
def test_a_string_of_many_steps_is_passed_over_exactly(value: str) -> None:
    text = json.dumps({"a": value, "b": [value], "c": 1})
    steps = outline_steps(text.encode(), LIMITS)
    assert sum(1 for _ in steps) >= 4
    assert json.loads(outline(text)) == {"a": "", "b": 1, "c": 1}


@pytest.mark.parametrize("offset", range(-4, 5))
def test_what_straddles_the_end_of_a_step_is_read_as_one(offset: int) -> None:
    start = b"[" + b" " * (256 * 1024 + offset - 1)
    for token in (b'"a\\"b"', b'"\\\\"', b"[1,2]", b'{"k":"]"}', b"12345"):
        text = b'{"x":' + start + b'0],"y":' + token + b"}"
        assert json.loads(outline(text)) == {"x": 1, "y": json.loads(token)}


@pytest.mark.parametrize("array", ["[1,2]", '["a"]', "[]"])
@pytest.mark.parametrize("count", [2, 10_000, 10_001, 10_002])
def test_rows_of_data_go_with_their_array(array: str, count: int) -> None:
    text = '{"data":[' + ",".join([array] * count) + '],"shape":[2]}'
    assert json.loads(outline(text))["data"] == (count * elements(json.loads(array)) if len(text) > 1060 else [json.loads(array)] * count)
    assert json.loads(outline(text))["shape"] == [2]


@pytest.mark.parametrize("text", ['{"a":"b', '"', '["a","', '"\\', '"\\"'])
def test_a_string_without_an_end_is_refused(text: str) -> None:
    with pytest.raises(UnparsableRequest, match="no end"):
        outline(text)


def test_arrays_nested_too_deep_are_refused() -> None:
    assert outline("[" * 1000 + "]" * 1000) is not None
    with pytest.raises(UnparsableRequest, match="too deep"):
        outline("[" * 1001)


@pytest.mark.parametrize("text", [b"1" * (2 << 20), b'{"a":1,' * 200_000, b'"short",' * 200_000], ids=["digits", "keys", "strings"])
def test_what_stays_large_is_refused(text: bytes) -> None:
    with pytest.raises(PayloadTooLarge, match="without its data"):
        outline(text)
