from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.protocols.http1 import HttpAnswer
from control_plane.protocols.http1_response import AnswerError, AnswerReader, ChunkedHead, ChunkReader

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-A: b\r\nContent-Length: 5\r\n\r\n"
ANSWER = HttpAnswer(200, HEAD, b"hello")


def feed(*pieces: bytes) -> HttpAnswer | None:
    reader, answer = AnswerReader(), None
    for piece in pieces:
        assert answer is None, "it was whole before the last piece"
        answer = reader.feed(piece)
    return answer


def test_one_piece() -> None:
    assert feed(HEAD + b"hello") == ANSWER


def test_byte_by_byte() -> None:
    assert feed(*(bytes([byte]) for byte in HEAD + b"hello")) == ANSWER


@given(cuts=st.sets(st.integers(1, len(HEAD) + 4)))
def test_any_pieces_give_the_same_answer(cuts: set[int]) -> None:
    whole = HEAD + b"hello"
    edges = [0, *sorted(cuts), len(whole)]
    assert feed(*(whole[a:b] for a, b in pairwise(edges))) == ANSWER


@given(status=st.integers(100, 599), body=st.binary(max_size=50), reason=st.text("abc ", max_size=5))
def test_head_and_body_are_kept_byte_for_byte(status: int, body: bytes, reason: str) -> None:
    head = f"HTTP/1.1 {status} {reason}\r\ncOnTeNt-LeNgTh:\t{len(body)} \r\nx: Y\r\n\r\n".encode()
    assert feed(head + body) == HttpAnswer(status, head, body)


_ANSWERS = st.builds(
    lambda status, extra, body: HttpAnswer(status, b"HTTP/1.1 %d OK\r\n%bContent-Length: %d\r\n\r\n" % (status, extra, len(body)), body),
    status=st.sampled_from([200, 404]),
    extra=st.sampled_from([b"", b"X: 1\r\n"]),
    body=st.sampled_from([b"", b"a", b"b", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"]),
)


@given(answers=st.lists(_ANSWERS, min_size=1, max_size=8), data=st.data())
def test_one_after_the_other_in_any_pieces(answers: list[HttpAnswer], data: st.DataObject) -> None:
    reader = AnswerReader()
    for answer in answers:
        whole = answer.head + answer.body
        cuts = data.draw(st.one_of(st.just(set[int]()), st.sets(st.integers(1, len(whole) - 1), max_size=3)))
        *first, last = [whole[a:b] for a, b in pairwise([0, *sorted(cuts), len(whole)])]
        assert [reader.feed(piece) for piece in first] == [None] * len(first)
        assert reader.feed(last) == answer


def test_whether_triton_closes_is_told_of_each_answer() -> None:
    reader = AnswerReader()
    told = []
    for line in (b"", b"Connection: close\r\n", b"Connection: close\r\n", b"", b""):
        assert reader.feed(b"HTTP/1.1 200 OK\r\n" + line + b"Content-Length: 0\r\n\r\n") is not None
        told.append(reader.closes)
    assert told == [False, True, True, False, False]


@pytest.mark.parametrize("fields", [b"Connection: close\r\n", b"keep-alive: timeout=5\r\nCONNECTION:keep-alive\r\n"])
def test_what_holds_for_tritons_connection_is_not_told_on(fields: bytes) -> None:
    reader, start, rest = AnswerReader(), b"HTTP/1.1 200 OK\r\n", b"X: 1\r\nContent-Length: 1\r\n\r\n"
    for _ in range(2):
        assert reader.feed(start + fields + rest + b"a") == HttpAnswer(200, start + rest, b"a")
    chunked = reader.feed(start + fields + b"Transfer-Encoding: chunked\r\n\r\n")
    assert chunked == ChunkedHead(200, start + b"Transfer-Encoding: chunked\r\n\r\n", b"")


@pytest.mark.parametrize("pieces", [1, 2], ids=["at once", "in two pieces"])
def test_more_than_a_repeated_head_announces_is_refused(pieces: int) -> None:
    reader = AnswerReader()
    assert reader.feed(HEAD + b"hello") == ANSWER
    if pieces == 2:
        assert reader.feed(HEAD) is None
    with pytest.raises(AnswerError):
        reader.feed(HEAD + b"hello!" if pieces == 1 else b"hello!")


@pytest.mark.parametrize(
    ("line", "closes"),
    [
        (b"", False),
        (b"Connection: close\r\n", True),
        (b"CONNECTION:close\r\n", True),
        (b"Connection: keep-alive\r\n", False),
        (b"X: close\r\n", False),
    ],
)
def test_tells_whether_triton_closes(line: bytes, closes: bool) -> None:
    reader = AnswerReader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\n" + line + b"Content-Length: 0\r\n\r\n") is not None
    assert reader.closes is closes


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n", id="no length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", id="another coding"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n", id="chunked, and a length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", id="a negative length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 5x\r\n\r\nhello", id="a length with letters"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", id="a length of 5000 digits"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX-Content-Length: 5\r\n\r\nhello", id="another field that ends so"),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", id="HTTP/1.0"),
        pytest.param(b"HTTP/1.1 2000 OK\r\nContent-Length: 5\r\n\r\nhello", id="a status of four digits"),
        pytest.param(b"SSH-2.0-OpenSSH\r\n\r\n", id="another protocol"),
        pytest.param(HEAD + b"hello!", id="more than announced"),
        pytest.param(HEAD + b"hello" + HEAD, id="a second answer"),
        pytest.param(b"x" * (64 * 1024 + 1), id="a head without an end"),
    ],
)
def test_refuses(raw: bytes) -> None:
    with pytest.raises(AnswerError):
        feed(raw)


@given(raw=st.binary(max_size=100), prefix=st.sampled_from([b"", HEAD, HEAD[:-2], b"HTTP/1.1 200 OK\r\nContent-Length: "]))
def test_any_bytes_are_an_answer_unfinished_or_an_error(raw: bytes, prefix: bytes) -> None:
    try:
        answer = feed(prefix + raw)
    except AnswerError:
        return
    assert answer is None or answer.head + answer.body == prefix + raw


CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("rest", [b"", b"2\r\nok\r\n"])
def test_a_chunked_answer_is_its_head_and_what_has_come_of_its_chunks(rest: bytes) -> None:
    assert AnswerReader().feed(CHUNKED + rest) == ChunkedHead(200, CHUNKED, rest)


def test_after_a_chunked_answer_the_next_one_is_read() -> None:
    reader = AnswerReader()
    assert reader.feed(HEAD + b"hello") == ANSWER
    assert isinstance(reader.feed(CHUNKED), ChunkedHead)
    assert reader.feed(HEAD + b"hello") == ANSWER


def test_a_large_body_is_handed_over_as_it_was_collected() -> None:
    reader, piece = AnswerReader(), bytes(256 * 1024)
    assert reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (64 * len(piece))) is None
    tracemalloc.start()
    answer = None
    for _ in range(64):
        answer = reader.feed(piece)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(answer, HttpAnswer)
    assert len(answer.body) == 64 * len(piece)
    assert peak < 1.5 * len(answer.body), "it was copied"


def chunked(pieces: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@given(pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=6), cuts=st.lists(st.integers(0, 300), max_size=8))
def test_chunks_are_found_in_any_pieces(pieces: list[bytes], cuts: list[int]) -> None:
    raw, reader, found = chunked(pieces), ChunkReader(), []
    for start, end in pairwise(sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})):
        assert not reader.is_done
        found += reader.feed(raw[start:end])
    assert (found, reader.is_done) == (pieces, True)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"x\r\n", id="no size"),
        pytest.param(b"\r\n", id="an empty size"),
        pytest.param(b"-1\r\n", id="a negative size"),
        pytest.param(b"2;a=b\r\nok\r\n", id="an extension"),
        pytest.param(b"2\nok\r\n", id="a bare LF"),
        pytest.param(b"1\r\nok\r\n", id="longer than its size"),
        pytest.param(b"1234567890", id="a size beyond any"),
        pytest.param(b"0\r\nA: b\r\n\r\n", id="a trailer"),
        pytest.param(b"0\r\n\r\nHTTP/1.1 200 OK", id="something behind the last chunk"),
    ],
)
def test_refuses_other_chunks(raw: bytes) -> None:
    with pytest.raises(AnswerError):
        ChunkReader().feed(raw)


@given(raw=st.binary(max_size=40))
def test_any_bytes_are_chunks_or_an_error(raw: bytes) -> None:
    try:
        found = ChunkReader().feed(raw)
    except AnswerError:
        return
    assert sum(map(len, found)) <= len(raw)
