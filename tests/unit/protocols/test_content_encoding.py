from __future__ import annotations

import gzip
import os
import tracemalloc
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.errors import InvalidRequest, NotSupported, PayloadTooLarge
from control_plane.protocols.content_encoding import decoded_pieces, is_encoded
from control_plane.protocols.kserve.requests.body_limits import BodyLimits, InflateBound

LIMIT = 1000
BOUND = InflateBound(LIMIT, "more than 1000 bytes")


def decode_body(body: bytes, encoding: bytes, bound: InflateBound) -> bytes:
    return b"".join(decoded_pieces(body, bound)) if is_encoded(encoding) else body


@pytest.mark.parametrize("encoding", [b"", b"identity", b"Identity", b" identity "])
def test_identity_is_the_body_itself(encoding: bytes) -> None:
    body = b"x" * 5000  # its limit is the frontend's, not this one's
    assert decode_body(body, encoding, BOUND) is body


@pytest.mark.parametrize("encoding", [b"gzip", b"GZIP", b" gzip ", b"x-gzip", b"deflate"])
@given(body=st.binary(max_size=LIMIT))
def test_both_formats_round_trip_under_every_name(encoding: bytes, body: bytes) -> None:
    assert decode_body(gzip.compress(body), encoding, BOUND) == body
    assert decode_body(zlib.compress(body), encoding, BOUND) == body


@pytest.mark.parametrize(("size", "fits"), [(LIMIT - 1, True), (LIMIT, True), (LIMIT + 1, False)])
def test_the_limit_is_on_the_decoded_size(size: int, fits: bool) -> None:
    body = gzip.compress(b"x" * size)
    if fits:
        assert decode_body(body, b"gzip", BOUND) == b"x" * size
    else:
        with pytest.raises(PayloadTooLarge, match="1000 bytes"):
            decode_body(body, b"gzip", BOUND)


def test_a_bomb_costs_no_more_memory_than_the_limit() -> None:
    bomb = gzip.compress(bytes(200 * 2**20), 9)  # 200 KB that become 200 MiB
    tracemalloc.start()
    with pytest.raises(PayloadTooLarge):
        decode_body(bomb, b"gzip", InflateBound(2**20, ""))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 2**20


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"not compressed at all", id="garbage"),
        pytest.param(gzip.compress(b"hello")[:-1], id="cut off in its trailer"),
        pytest.param(gzip.compress(b"hello" * 50)[:-12], id="cut off in its data"),
        pytest.param(gzip.compress(b"hello")[:5], id="cut off in its header"),
        pytest.param(gzip.compress(b"hello") + b"x", id="followed by something"),
        pytest.param(gzip.compress(b"hello") + gzip.compress(b"world"), id="two members, of which Triton reads one"),
        pytest.param(gzip.compress(b"hello")[:-8] + b"\0" * 8, id="a wrong checksum"),
        pytest.param(zlib.compress(b"hello")[2:-4], id="raw deflate without its header"),
    ],
)
@pytest.mark.parametrize("encoding", [b"gzip", b"deflate"])
def test_refuses_what_is_not_one_whole_stream(body: bytes, encoding: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_body(body, encoding, BOUND)


@pytest.mark.parametrize("encoding", [b"br", b"zstd", b"compress", b"gzip, gzip", b"gzip,identity", b"gz\xffip", b"*"])
def test_refuses_what_it_cannot_undo(encoding: bytes) -> None:
    with pytest.raises(NotSupported, match="gzip, deflate and identity are"):
        decode_body(gzip.compress(b"x"), encoding, BOUND)


@given(body=st.binary(max_size=300), prefix=st.sampled_from([b"", b"\x1f\x8b\x08\x00", b"\x78\x9c"]))
def test_any_bytes_end_in_an_answer(body: bytes, prefix: bytes) -> None:
    with suppress(InvalidRequest, PayloadTooLarge):
        assert len(decode_body(prefix + body, b"gzip", BOUND)) <= LIMIT


@pytest.mark.parametrize("level", [0, 1, 9])
@pytest.mark.parametrize("content", [bytes(5 << 20), bytes(range(256)) * 20_000, os.urandom(3 << 20)], ids=["zeros", "a pattern", "noise"])
def test_a_large_body_comes_in_pieces_that_make_it_whole(content: bytes, level: int) -> None:
    pieces = list(decoded_pieces(gzip.compress(content, level), InflateBound(len(content), "")))
    assert b"".join(pieces) == content
    assert len(pieces) >= 3
    assert max(map(len, pieces)) <= 1 << 20


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 1, (2 << 20) - 1])
def test_what_zlib_holds_back_when_a_piece_is_full_is_not_lost(size: int) -> None:
    for content in (bytes(size), b"ab" * (size // 2)):
        assert decode_body(gzip.compress(content), b"gzip", InflateBound(4 << 20, "")) == content


@pytest.mark.parametrize(
    ("size", "limits", "says"),
    [
        pytest.param(2**22, BodyLimits(max_inflate_ratio=2), None, id="small bodies may inflate as far as they like"),
        pytest.param(2**22 + 1, BodyLimits(max_inflate_ratio=2), "TIDEGATE_MAX_INFLATE_RATIO.*less compressed", id="but no further"),
        pytest.param(30 * 2**20, BodyLimits(), "exceeds [0-9]+ bytes, at most 100 times its [0-9]+", id="zeros, a thousandfold"),
        pytest.param(30 * 2**20, BodyLimits(max_inflate_ratio=1100), None, id="if that is allowed"),
        pytest.param(2**20, BodyLimits(max_body_bytes=2**19), "TIDEGATE_MAX_BODY_BYTES", id="never more than a body may have"),
    ],
)
def test_how_far_a_body_may_inflate(size: int, limits: BodyLimits, says: str | None) -> None:
    packed = gzip.compress(bytes(size), 9)
    bound = limits.inflated(len(packed))
    if says is None:
        assert len(decode_body(packed, b"gzip", bound)) == size
    else:
        with pytest.raises(PayloadTooLarge, match=says):
            decode_body(packed, b"gzip", bound)
