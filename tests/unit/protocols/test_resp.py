"""Answers are read as they were written, in whatever slices they come; what is no RESP2 is an error."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.protocols.resp import Answer, ReplyError, RespError, RespReader, Scalar, pack_command

SIMPLE = st.binary(max_size=20).filter(lambda line: b"\r\n" not in line and not line.endswith(b"\r"))
NUMBERS = st.integers(-(2**63), 2**63 - 1)
ELEMENTS = st.one_of(
    st.binary(max_size=60).map(lambda value: (b"$%d\r\n%b\r\n" % (len(value), value), value)),
    SIMPLE.map(lambda line: (b"+%b\r\n" % line, line)),
    NUMBERS.map(lambda number: (b":%d\r\n" % number, number)),
    st.just((b"$-1\r\n", None)),
)
ARRAYS = st.lists(ELEMENTS, max_size=5).map(
    lambda elements: (b"*%d\r\n" % len(elements) + b"".join(written for written, _ in elements), [value for _, value in elements])
)
ANSWERS = st.lists(st.one_of(ELEMENTS, ARRAYS, st.just((b"*-1\r\n", None))), max_size=6)


def read(pieces: list[bytes]) -> list[Answer]:
    reader = RespReader()
    return [answer for piece in pieces for answer in reader.feed(piece)]


@given(answers=ANSWERS, cuts=st.lists(st.integers(0, 300), max_size=12))
def test_answers_are_the_same_in_whatever_slices_they_come(answers: list[tuple[bytes, Answer]], cuts: list[int]) -> None:
    data = b"".join(written for written, _ in answers)
    bounds = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    assert read([data[start:end] for start, end in pairwise(bounds)]) == [answer for _, answer in answers]


@given(words=st.lists(st.binary(max_size=60), min_size=1, max_size=5))
def test_a_command_is_an_array_of_its_words(words: list[Scalar]) -> None:
    assert read([pack_command(*words)]) == [words]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        pytest.param(b"-ERR unknown command", "unknown command", id="without its code"),
        pytest.param(b"-WRONGPASS invalid", "invalid", id="with another code"),
        pytest.param(b"-ERR", "ERR", id="nothing but a code"),
        pytest.param(b"-no such thing", "no such thing", id="no code"),
        pytest.param(b"-ERR \xff\xfe", "\ufffd\ufffd", id="not UTF-8"),
    ],
)
def test_a_refusal_is_an_answer(line: bytes, text: str) -> None:
    one, other, (within,) = read([line + b"\r\n+OK\r\n*1\r\n" + line + b"\r\n"])
    assert other == b"OK"
    for each in (one, within):
        assert isinstance(each, ReplyError)
        assert str(each) == text


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\n", id="another protocol"),
        pytest.param(b"\r\n", id="an empty line"),
        pytest.param(b"$x\r\n", id="no length"),
        pytest.param(b"$ 1\r\nx\r\n", id="a length with a space"),
        pytest.param(b"$-2\r\n", id="a negative length"),
        pytest.param(b"$536870913\r\n", id="a length beyond Redis's limit"),
        pytest.param(b"*536870913\r\n", id="an array beyond the limit"),
        pytest.param(b"$" + b"1" * 5000 + b"\r\n", id="a length of thousands of digits"),
        pytest.param(b":" + b"1" * 5000 + b"\r\n", id="a number of thousands of digits"),
        pytest.param(b":1.5\r\n", id="no whole number"),
        pytest.param(b"$1\r\nxyz\r\n", id="a string longer than its length"),
        pytest.param(b"*1\r\n*1\r\n", id="an array within an array"),
        pytest.param(b"+" + b"x" * 70_000, id="a line without end"),
    ],
)
def test_what_is_no_resp_is_an_error(data: bytes) -> None:
    with pytest.raises(RespError):
        read([data])


def test_an_array_that_does_not_come_costs_nothing() -> None:
    reader = RespReader()
    assert reader.feed(b"*500000000\r\n$-1\r\n") == []
    assert reader.feed(b"$1\r\nx\r\n") == []
    assert len(reader._array) == 2
