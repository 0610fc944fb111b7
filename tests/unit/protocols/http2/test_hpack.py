"""Compares the decoder with the library `hpack`, an independent implementation."""

from __future__ import annotations

import re

import hpack
import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman as peers_decode_huffman
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.protocols.http2.hpack import Fields, HeaderListTooLarge, HpackReader
from control_plane.protocols.http2.huffman import decode_huffman

NAMES = st.sampled_from([b":path", b":status", b"content-type", b"x-a", b"x-b"]) | st.binary(min_size=1, max_size=40)
FIELDS = st.lists(st.tuples(NAMES, st.binary(max_size=200)), max_size=6)
REPRESENTATIONS = st.sampled_from(
    [
        b"\x82",
        b"\xbe",
        b"\xbf",
        b"\xc3",
        b"\x40\x01a\x01b",
        b"\x44\x02/a",
        b"\x7e\x01c",
        b"\0\x01d\x01e",
        b"\x10\x01f\x82\x1c\x64",
        b"\x0f\x10\x01g",
    ]
)


def reader(*, max_bytes: int = 1 << 20, max_fields: int = 10_000) -> HpackReader:
    return HpackReader(max_bytes=max_bytes, max_fields=max_fields)


def peers_reading(peer: hpack.Decoder, block: bytes) -> Fields | None:
    """Decode a block; None if it is invalid."""
    try:
        return tuple((bytes(name), bytes(value)) for name, value in peer.decode(block, raw=True))
    except (hpack.HPACKError, IndexError, ValueError):
        return None


def our_reading(ours: HpackReader, block: bytes) -> Fields | None:
    try:
        return ours.read(block)
    except (IndexError, ValueError):
        return None


@given(lists=st.lists(FIELDS, max_size=6), sizes=st.lists(st.integers(0, 4096), max_size=6), huffman=st.booleans())
def test_what_another_library_writes_with_a_table_that_grows_and_shrinks(
    lists: list[list[tuple[bytes, bytes]]], sizes: list[int], huffman: bool
) -> None:
    peer, ours = hpack.Encoder(), reader()
    for number, fields in enumerate(lists):
        if number < len(sizes):
            peer.header_table_size = sizes[number]
        assert ours.read(peer.encode(fields, huffman=huffman)) == tuple(fields)


@settings(max_examples=300)
@given(blocks=st.lists(st.lists(REPRESENTATIONS | st.binary(max_size=6), max_size=12).map(b"".join), min_size=1, max_size=4))
def test_any_bytes_mean_what_they_mean_to_another_library(blocks: list[bytes]) -> None:
    peer, ours = hpack.Decoder(max_header_list_size=1 << 20), reader()
    for block in blocks:
        expected, got = peers_reading(peer, block), our_reading(ours, block)
        if got is None and expected is not None:
            assert is_refused_by_us_alone(block)
        else:
            assert got == expected
        if got is None:
            return


def is_refused_by_us_alone(block: bytes) -> bool:
    """A block with more than two table size updates (RFC 7541, 4.2 allows two), or with a number of more than
    four bytes."""
    return sum(0x20 <= byte < 0x40 for byte in block) > 2 or re.search(rb"[\x80-\xff]{4}", block) is not None


@given(text=st.binary(max_size=300))
def test_huffmans_code_is_read_as_it_is_written(text: bytes) -> None:
    assert decode_huffman(HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(text)) == text


@settings(max_examples=300)
@given(coded=st.binary(max_size=12))
def test_any_bytes_in_huffmans_code_mean_what_they_mean_to_another_library(coded: bytes) -> None:
    try:
        expected: bytes | None = peers_decode_huffman(coded)
    except hpack.HPACKError:
        expected = None
    try:
        got: bytes | None = decode_huffman(coded)
    except ValueError:
        got = None
    assert got == expected


@pytest.mark.parametrize(
    ("block", "limits"),
    [
        pytest.param(b"\x82" * 11, {"max_fields": 10}, id="fields of a byte each"),
        pytest.param(b"\0\x01a\x01b" * 11, {"max_fields": 10}, id="fields"),
        pytest.param(b"\0\x01a\x7f" + bytes([10]) + b"x" * 137, {"max_bytes": 150}, id="bytes"),
        pytest.param(b"\x40\x01a\x7f\x49" + b"x" * 200 + b"\xbe" * 10, {"max_bytes": 2_000}, id="bytes that the table stands for"),
    ],
)
def test_more_than_is_taken_is_refused_while_it_is_read(block: bytes, limits: dict[str, int]) -> None:
    with pytest.raises(HeaderListTooLarge):
        reader(**limits).read(block)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(b"\x20" * 3, id="a third change of the table's size"),
        pytest.param(b"\x00\x7f\xff\xff\xff\xff\xff\xff\x7f", id="a number that is too large"),
        pytest.param(b"\x00\x01a\x7f\x80\x80\x80\x80\x00", id="a number with digits of nothing"),
    ],
)
def test_what_costs_and_means_nothing_is_refused(block: bytes) -> None:
    with pytest.raises(ValueError):
        reader().read(block)
