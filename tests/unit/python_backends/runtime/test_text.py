"""Decoding BYTES tensors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.runtime.errors import RequestError
from python_backends.runtime.text import decode_utf8


def bytes_tensor(*values: bytes) -> np.ndarray:
    return np.array([[value] for value in values], dtype=np.object_)


@given(st.lists(st.text(), max_size=5))
def test_utf8_comes_back_as_it_was(texts: list[str]) -> None:
    assert decode_utf8(bytes_tensor(*(text.encode() for text in texts)), "TEXT") == texts


def test_elements_come_in_c_order() -> None:
    assert decode_utf8(np.array([[b"a", b"b"], [b"c", b"d"]], dtype=np.object_), "X") == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param((b"ok", b"\xff"), r"TEXT\[1\] is not valid UTF-8: invalid start byte at byte 0 of 1", id="start-byte"),
        pytest.param((b"ab\xc3", b"ok"), r"TEXT\[0\] is not valid UTF-8: unexpected end of data at byte 2 of 3", id="cut-short"),
        pytest.param((b"\xed\xa0\x80",), r"TEXT\[0\] is not valid UTF-8: invalid continuation byte at byte 0 of 3", id="surrogate"),
        pytest.param((b"ok", b"\xff", b"\xff\xfe"), r"TEXT\[1\]", id="the-first-of-several"),
    ],
)
def test_the_error_says_which_text_and_where_in_it(values: tuple[bytes, ...], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        decode_utf8(bytes_tensor(*values), "TEXT")
