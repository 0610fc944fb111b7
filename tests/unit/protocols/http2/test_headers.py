from __future__ import annotations

import tracemalloc

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.algorithms import bounded_cache
from control_plane.protocols.http2.frames import Code, Http2Error
from control_plane.protocols.http2.headers import NO_TABLE, Fields, HeaderDecoder, KnownBlocks, encode_fields, encode_varying

REQUEST: Fields = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
    (b":authority", b"localhost:8001"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"user-agent", b"grpc-python/1.0"),
    (b"x-trace-bin", b"AAEC"),
)
FIELDS = st.lists(
    st.tuples(st.sampled_from([name for name, _ in REQUEST]) | st.binary(min_size=1, max_size=30), st.binary(max_size=300)), max_size=8
).map(tuple)


def decoder(known: KnownBlocks | None = None, *, max_bytes: int = 16 << 10, has_table: bool = False) -> HeaderDecoder:
    made = HeaderDecoder(known or KnownBlocks(), max_bytes=max_bytes)
    if not has_table:
        made.forbid_table()
    return made


@given(fields=FIELDS)
def test_ours_is_read_by_another_library_that_allows_no_table(fields: Fields) -> None:
    peer = hpack.Decoder()
    peer.max_allowed_table_size = 0
    assert tuple(tuple(each) for each in peer.decode(NO_TABLE + encode_fields(fields), raw=True)) == fields
    assert tuple(tuple(each) for each in peer.decode(encode_fields(fields), raw=True)) == fields


@given(fields=FIELDS, huffman=st.booleans())
def test_a_peer_with_a_table_is_read_until_it_is_told_that_there_is_none(fields: Fields, huffman: bool) -> None:
    peer, ours = hpack.Encoder(), decoder(has_table=True)
    for _ in range(2):
        assert ours.decode(peer.encode(fields, huffman=huffman)) == fields
    ours.forbid_table()
    peer.header_table_size = 0
    for _ in range(3):  # the first says so, the third is a known one
        assert ours.decode(peer.encode(fields, huffman=huffman)) == fields


def test_a_block_that_is_known_is_not_read_again() -> None:
    known, block = KnownBlocks(), encode_fields(REQUEST)
    first = decoder(known)
    first.decode(NO_TABLE)
    fields = first.decode(block)
    second = decoder(known)
    second.decode(NO_TABLE)
    assert second.decode(block) is fields


def test_what_depends_on_the_table_is_never_taken_for_known() -> None:
    known = KnownBlocks()
    for value in (b"1", b"2"):
        peer, ours = hpack.Encoder(), decoder(known, has_table=True)
        ours.decode(peer.encode([(b"x-a", value)]))
        assert ours.decode(peer.encode([(b"x-a", value)])) == ((b"x-a", value),)


def test_a_block_that_changes_the_table_is_never_taken_for_known() -> None:
    known = KnownBlocks()
    for _ in range(2):
        ours = decoder(known, has_table=True)
        ours.decode(b"\x20")  # no table, of the peer's own accord
        ours.decode(b"\x3f\xe1\x1f")  # and again one of 4096
        with_a = b"\x40\x03x-a\x011"  # x-a: 1, to be remembered
        assert ours.decode(with_a) == ((b"x-a", b"1"),)
        assert ours.decode(b"\xbe") == ((b"x-a", b"1"),)


def test_a_peer_that_keeps_its_table_against_our_word() -> None:
    peer, ours = hpack.Encoder(), decoder(has_table=True)
    ours.decode(peer.encode(REQUEST))
    ours.forbid_table()
    with pytest.raises(Http2Error) as caught:
        ours.decode(peer.encode(REQUEST))
    assert caught.value.http2_code is Code.COMPRESSION_ERROR


def test_a_peer_that_begins_a_table_against_our_word() -> None:
    peer, ours = hpack.Encoder(), decoder(has_table=True)
    ours.forbid_table()
    assert ours.decode(peer.encode(REQUEST)) == REQUEST
    with pytest.raises(Http2Error) as caught:
        ours.decode(peer.encode(REQUEST))
    assert caught.value.http2_code is Code.COMPRESSION_ERROR


def test_a_peer_that_never_uses_a_table_need_not_say_that_it_has_none() -> None:
    block, ours = encode_fields(REQUEST), decoder(has_table=True)
    assert ours.decode(block) == REQUEST
    ours.forbid_table()
    assert [ours.decode(block) for _ in range(2)] == [REQUEST] * 2
    assert ours.knows(block)


def test_a_list_that_is_too_large_whatever_its_block() -> None:
    peer, ours = hpack.Encoder(), decoder(max_bytes=1000, has_table=True)
    assert ours.decode(peer.encode([(b"x", b"y" * 900)]))
    with pytest.raises(Http2Error) as caught:
        ours.decode(b"\xbe" * 2)  # two bytes that stand for twice 900
    assert caught.value.http2_code is Code.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(b"\x80", id="index 0"),
        pytest.param(b"\xff\xff\xff\xff\x0f", id="an index beyond all tables"),
        pytest.param(b"\x00\x05ab", id="cut off in a name"),
        pytest.param(b"\x00", id="no name at all"),
        pytest.param(b"\x00\x81\x00\x00", id="Huffman padding of zeros"),
        pytest.param(b"\x82\x20", id="a table's size behind a field"),
        pytest.param(b"\x7f" + b"\xff" * 20, id="a number without end"),
        pytest.param(b"\x3f\xe1\xff\x03", id="a table larger than allowed"),
    ],
)
def test_a_block_that_cannot_be_read(block: bytes) -> None:
    with pytest.raises(Http2Error) as caught:
        decoder(has_table=True).decode(block)
    assert caught.value.http2_code is Code.COMPRESSION_ERROR


@given(blocks=st.lists(st.binary(max_size=60), max_size=4), forbidden_from=st.integers(0, 4))
def test_any_bytes_are_fields_or_one_kind_of_error_and_the_same_for_a_server_that_knows_them(
    blocks: list[bytes], forbidden_from: int
) -> None:
    known = KnownBlocks()
    assert read_all(blocks, known, forbidden_from) == read_all(blocks, known, forbidden_from) == read_all(blocks, None, forbidden_from)


def read_all(blocks: list[bytes], known: KnownBlocks | None, forbidden_from: int) -> list[Fields | Code]:
    ours, seen = decoder(known, has_table=True), list[Fields | Code]()
    for number, block in enumerate(blocks):
        if number == forbidden_from:
            ours.forbid_table()
        try:
            seen.append(ours.decode(block))
        except Http2Error as exc:
            return [*seen, exc.http2_code]
    return seen


def test_a_block_that_says_again_that_there_is_no_table_is_known_too() -> None:
    known, block = KnownBlocks(), NO_TABLE + encode_fields(REQUEST)
    first = decoder(known, has_table=True)
    first.decode(NO_TABLE)
    first.forbid_table()
    fields = first.decode(block)
    assert first.decode(block) is fields == REQUEST


def test_what_hardly_comes_again_is_built_the_same() -> None:
    assert encode_varying(REQUEST) == encode_fields(REQUEST)
    assert encode_varying(REQUEST) is not encode_varying(REQUEST)
    assert encode_fields(REQUEST) is encode_fields(REQUEST)


def test_what_is_kept_of_heads_is_bounded_in_bytes() -> None:
    known = KnownBlocks()
    heads = [(*REQUEST, (b"x-request-id", b"%d" % number * 100)) for number in range(10_000)]
    tracemalloc.start()
    try:
        for head in heads:
            ours = decoder(known)
            ours.decode(NO_TABLE)
            ours.decode(encode_fields(head))
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 3 * bounded_cache.MAX_BYTES  # two caches
