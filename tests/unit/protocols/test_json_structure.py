"""JSON whose values are counted before it is parsed."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.errors import PayloadTooLarge
from control_plane.protocols import json_structure
from control_plane.protocols.json_structure import MOST, bounded_steps

_TEXTS = st.text() | st.sampled_from(["[", '"', "\\", '\\"', "{,}", "x" * 2_000 + "[", '"\\' * 900])
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers(-9, 9) | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


def marks(value: Any) -> int:
    """Brackets, braces and commas of a value as JSON."""
    if isinstance(value, dict):
        value = list(value.values())
    return 2 + max(0, len(value) - 1) + sum(map(marks, value)) if isinstance(value, list) else 0


def steps_of(text: bytes) -> int:
    return sum(1 for _ in bounded_steps(text))


@given(value=_VALUES, step_bytes=st.sampled_from([5, 64, 16 * 1024]))
def test_what_is_outside_of_strings_is_counted(value: Any, step_bytes: int) -> None:
    text, count = orjson.dumps([value, "[]{}"]), marks([value, ""])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_structure, "_STEP_BYTES", step_bytes)
        patch.setattr(json_structure, "MOST", count)
        steps_of(text)
        patch.setattr(json_structure, "MOST", count - 1)
        with pytest.raises(PayloadTooLarge):
            steps_of(text)


@pytest.mark.parametrize("text", ["[" * 40_000, ",{" * 40_000, 'say "no" ' * 20_000, "\\" * 200_000])
def test_a_text_may_have_any_number_of_them(text: str) -> None:
    assert steps_of(orjson.dumps({"messages": [{"role": "user", "content": text}] * 4})) < 1_000


@pytest.mark.parametrize("each", [b"[]", b"{}", b"1", b'""', b'{"role":[1]}'])
def test_very_many_values_are_refused(each: bytes) -> None:
    text = b'{"messages":[' + b",".join([each] * MOST) + b"]}"
    with pytest.raises(PayloadTooLarge, match="more than 32768 lists, objects and values"):
        steps_of(text)


def test_each_step_is_short_however_long_the_text_is() -> None:
    text = orjson.dumps({"messages": [{"role": "user", "content": "[" * 40_000 + "hello" * 400_000}, *["word"] * 20_000]})
    assert steps_of(text) > 64


@pytest.mark.parametrize("text", [b'{"a":"' + b"[" * 40_000, b'"' + b"\\" * 40_001 + b"[" * 40_000, b"[" * 40_000 + b'"'])
def test_what_is_no_json_comes_to_an_end(text: bytes) -> None:
    try:
        steps_of(text)
    except PayloadTooLarge:
        assert text.startswith(b"[")


@pytest.mark.parametrize("each", [b'""', b'"":', b'"a" '])
def test_strings_that_nothing_parts_are_not_looked_through(each: bytes) -> None:
    assert steps_of(b'{"' + b"," * (MOST + 1) + b'"' + each * 200_000) < 16
