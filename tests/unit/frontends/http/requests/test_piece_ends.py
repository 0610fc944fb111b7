"""Where the pieces end that the parser is given: found wherever the data is cut."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.frontends.http.requests.piece_ends import PieceEnds


def pieces_of(reads: Iterable[bytes], ends: PieceEnds) -> list[bytes]:
    """The pieces of what arrives in these reads, one after the other."""
    found = []
    for data in reads:
        at = 0
        while at < len(data):
            stop = ends.end(data, at)
            assert stop > at
            found.append(data[at:stop])
            at = stop
    return found


def cut(data: bytes, places: list[int]) -> list[bytes]:
    return [data[start:end] for start, end in pairwise(sorted({0, len(data), *(place for place in places if place < len(data))}))]


@given(size=st.integers(0, 9_000) | st.integers(4_070, 4_100), cuts=st.lists(st.integers(1, 9_100), max_size=4), last=st.integers(1, 5))
def test_a_head_ends_a_piece_however_it_is_cut(size: int, cuts: list[int], last: int) -> None:
    head = b"GET /%b HTTP/1.1\r\n\r\n" % (b"a" * size)
    pieces = pieces_of(cut(head + b"\r\nwhat follows\r\n\r\n", [*cuts, len(head) - last]), PieceEnds())
    assert len(head) in accumulate(map(len, pieces))
    assert max(map(len, pieces)) <= 4096


CHUNKS = [b"8;x=1\r\nffffff\r\n\r\n", b"1\r\na\r\n", b"0\r\n\r\n"]


@pytest.mark.parametrize("cuts", [[], [7], [9, 12], [20]])
def test_a_chunk_is_a_piece_and_what_is_in_it_is_no_size(cuts: list[int]) -> None:
    ends = PieceEnds()
    ends.begin_body(0, is_chunked=True)
    reads = cut(b"".join(CHUNKS), cuts)
    assert b"".join(pieces_of(reads, ends)) == b"".join(CHUNKS)
    assert (ends.missing_bytes, ends.is_at_chunk) == (0, False)


def test_chunks_that_came_together_are_pieces() -> None:
    ends = PieceEnds()
    ends.begin_body(0, is_chunked=True)
    assert pieces_of([b"".join(CHUNKS) + b"GET / HTTP/1.1\r\n\r\n"], ends) == [*CHUNKS, b"GET / HTTP/1.1\r\n\r\n"]


def test_the_rest_of_a_body_whose_size_line_is_cut_is_sliced() -> None:
    ends = PieceEnds()
    ends.begin_body(0, is_chunked=True)
    chunks = b"\r\na\r\n" + b"1\r\na\r\n" * 2_000 + b"0\r\n\r\n"
    pieces = pieces_of([b"1", chunks], ends)
    assert b"".join(pieces) == b"1" + chunks
    assert max(map(len, pieces)) <= 4096


def test_a_body_of_known_size_is_a_piece_whatever_is_in_it() -> None:
    ends = PieceEnds()
    ends.begin_body(8, is_chunked=False)
    assert pieces_of([b"\r\n\r\nabcdGET / HTTP/1.1\r\n\r\n"], ends) == [b"\r\n\r\nabcd", b"GET / HTTP/1.1\r\n\r\n"]
