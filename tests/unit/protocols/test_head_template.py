"""Templates recognise heads that differ in per-request fields only, and their keys are without these."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from control_plane.protocols.head_template import Http1Template, Http2Template
from control_plane.protocols.http2.frames import Http2Error
from control_plane.protocols.http2.headers import HeaderDecoder, KnownBlocks, encode_varying
from control_plane.protocols.per_request import PLAIN

FIELDS = dict.fromkeys((b"traceparent", b"x-request-id", b"grpc-timeout"), PLAIN)
MAX_BYTES = 600

NAMES = st.sampled_from([b"traceparent", b"Traceparent", b"x-request-id", b"host", b"x-other", b"content-length", b"tracepare", b"x"])
VALUES = st.sampled_from([b"", b"1", b"22", b"a, b", b"00-4bf9-01", b"\t1", b"\xe4", b"0123456", b" 3"])
LINES = st.lists(st.tuples(NAMES, VALUES), max_size=5)
STARTS = st.sampled_from([b"POST /v2/models/m/infer HTTP/1.1", b"GET / HTTP/1.1"])


def head_of(start: bytes, lines: list[tuple[bytes, bytes]]) -> bytes:
    return b"\r\n".join((start, *(name + b":" + value for name, value in lines))) + b"\r\n\r\n"


def lasting(lines: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in lines if name.lower() not in FIELDS and name != b"content-length"]


@given(start=STARTS, lines=LINES, other_start=STARTS, others=LINES, before=st.binary(max_size=3))
def test_a_head_that_is_recognised_differs_in_fields_of_one_request_only(
    start: bytes, lines: list[tuple[bytes, bytes]], other_start: bytes, others: list[tuple[bytes, bytes]], before: bytes
) -> None:
    template, other = Http1Template(head_of(start, lines), FIELDS), head_of(other_start, others)
    found = template.match(before + other + b"body", len(before))
    if found is None:
        return
    assert (start, lasting(lines)) == (other_start, lasting(others))
    assert [name for name, _ in lines] == [name for name, _ in others]
    assert found[0] == len(before) + len(other)
    assert template.key == Http1Template(other, FIELDS).key
    lengths = [value for name, value in others if name == b"content-length" and value.strip(b" ").isdigit() and len(value.strip()) < 7]
    assert found[1] == (int(lengths[-1]) if lengths else 0)


@given(lines=LINES, values=st.lists(st.sampled_from([b"", b" 1", b" a b", b" 00-4bf9-01"]), min_size=5, max_size=5))
def test_every_value_of_one_request_may_differ(lines: list[tuple[bytes, bytes]], values: list[bytes]) -> None:
    known = [(name, b" 1" if name.lower() in FIELDS else value) for name, value in lines]
    other = [(name, new if name.lower() in FIELDS else value) for (name, value), new in zip(lines, values, strict=False)]
    template = Http1Template(head_of(b"POST / HTTP/1.1", known), FIELDS)
    assert template.match(head_of(b"POST / HTTP/1.1", other), 0) is not None


def test_the_key_has_neither_fields_of_one_request_nor_lengths() -> None:
    lines = [(b"Host", b" a"), (b"Traceparent", b" 1"), (b"Content-Length", b" 12"), (b"x", b"y"), (b"X-Request-Id", b"")]
    assert Http1Template(head_of(b"POST / HTTP/1.1", lines), FIELDS).key == b"POST / HTTP/1.1\r\nHost: a\r\nx:y\r\n\r\n"


H2_NAMES = st.sampled_from([b":path", b"traceparent", b"x-request-id", b"grpc-timeout", b"x-other", b"user-agent"])
H2_VALUES = st.sampled_from([b"", b"1", b"10S", b"999u", b"00-4bf92f3577b34da6a3ce929d0e0e4736-01", b"\xe4", b"\n", b"v" * 140])
H2_FIELDS = st.lists(st.tuples(H2_NAMES, H2_VALUES), max_size=5)
Head = list[tuple[bytes, bytes]]
Encode = Callable[[Head], bytes]


def raw(fields: Head) -> bytes:
    return encode_varying(tuple(fields))


def coded(fields: Head) -> bytes:
    encoder = Encoder()
    encoder.header_table_size = 0
    return encoder.encode(fields, huffman=True)


def read(block: bytes) -> tuple[tuple[bytes, bytes], ...] | None:
    decoder = HeaderDecoder(KnownBlocks(), max_bytes=MAX_BYTES)
    decoder.decode(b"\x20")
    decoder.forbid_table()
    try:
        return decoder.decode(block)
    except Http2Error:
        return None


def is_plain(name: bytes, value: bytes) -> bool:
    return value in (b"10S", b"999u") if name == b"grpc-timeout" else value not in (b"\xe4", b"\n")


@given(blocks=st.lists(st.tuples(st.sampled_from([raw, coded]), H2_FIELDS), min_size=1, max_size=6))
def test_a_blocks_key_means_the_same_but_for_fields_of_one_request_whatever_came_before(
    blocks: list[tuple[Encode, Head]],
) -> None:
    template = Http2Template(FIELDS, max_bytes=MAX_BYTES)
    for encode, fields in blocks:
        block = encode(fields)
        key = template.key(block)
        assert key == Http2Template(FIELDS, max_bytes=MAX_BYTES).key(block)
        assert template.key(block) == key
        if read(block) is None:
            assert key == block, "what is refused has no key but its own"
        else:
            assert read(key) == tuple(field for field in fields if field[0] not in FIELDS or not is_plain(*field))


@given(block=st.binary(max_size=60), known=H2_FIELDS, cut=st.integers(0, 200))
def test_no_bytes_are_too_odd_for_a_key(block: bytes, known: list[tuple[bytes, bytes]], cut: int) -> None:
    template = Http2Template(FIELDS, max_bytes=MAX_BYTES)
    template.key(raw(known))
    for odd in (block, raw(known)[:cut], raw(known) + block):
        if read(odd) is None:
            assert template.key(odd) == odd


@pytest.mark.parametrize("encode", [raw, coded])
def test_calls_with_a_trace_and_a_time_of_their_own_have_one_key(encode: Encode) -> None:
    template = Http2Template(FIELDS, max_bytes=MAX_BYTES)
    calls = [[(b":path", b"/s/m"), (b"grpc-timeout", b"%du" % n), (b"traceparent", b"00-%032x-01" % n), (b"x", b"y")] for n in (9, 10, 999)]
    keys = {template.key(encode(fields)) for fields in calls}
    assert len(keys) == 1
    blocks = [encode(fields) for fields in calls]
    assert all(one != other for one, other in pairwise(blocks))


def test_of_a_large_block_no_template_is_made() -> None:
    template = Http2Template(FIELDS, max_bytes=1 << 14)
    large = raw([(b"traceparent", b"1"), (b"x-other", b"v" * 3000)])
    assert template.key(large) == large
