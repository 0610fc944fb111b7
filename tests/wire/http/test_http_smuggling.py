"""Request smuggling: requests that two parsers could understand differently are refused, and nothing reaches
Triton."""

from __future__ import annotations

import json

import pytest

from control_plane.protocols.http1 import upstream_pieces
from tests.wire.gateway import INFER, gateway, infer_request

_START = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: test\r\n"
_LENGTH = b"Content-Length: %d\r\n" % len(INFER)
_CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(INFER), INFER)
_OFFER = b"Connection: Upgrade\r\nUpgrade: h2c"


def with_length(value: bytes) -> bytes:
    return _START + b"Content-Length: " + value + b"\r\n\r\n" + INFER


def with_coding(*lines: bytes) -> bytes:
    return _START + b"\r\n".join(lines) + b"\r\n\r\n" + _CHUNKS


def with_chunks(chunks: bytes) -> bytes:
    return _START + b"Transfer-Encoding: chunked\r\n\r\n" + chunks


def with_lines(lines: bytes) -> bytes:
    return _START + lines + _LENGTH + b"\r\n" + INFER


AMBIGUOUS = [
    pytest.param(with_lines(b"Host: another\r\n"), id="Host twice"),
    pytest.param(with_lines(_LENGTH), id="Content-Length twice, equal"),
    pytest.param(with_lines(b"Content-Length: 0\r\n"), id="Content-Length twice, different"),
    pytest.param(with_lines(b"content-length: 0\r\n"), id="Content-Length twice, in another case"),
    pytest.param(with_length(b"66, 66"), id="a list of lengths"),
    pytest.param(with_length(b"-1"), id="a negative length"),
    pytest.param(with_length(b"+66"), id="a signed length"),
    pytest.param(with_length(b"0x42"), id="a hexadecimal length"),
    pytest.param(with_length(b"6 6"), id="a length with a space"),
    pytest.param(with_length(b"66."), id="a length with a point"),
    pytest.param(with_length(b""), id="an empty length"),
    pytest.param(with_length(b"18446744073709551682"), id="a length that wraps to 66"),
    pytest.param(with_lines(b"Transfer-Encoding: chunked\r\n"), id="a coding and then a length"),
    pytest.param(_START + _LENGTH + b"Transfer-Encoding: chunked\r\n\r\n" + _CHUNKS, id="a length and then a coding"),
    pytest.param(with_lines(b"Transfer-Encoding: identity\r\n"), id="identity and a length"),
    pytest.param(with_coding(b"Transfer-Encoding: xchunked"), id="xchunked"),
    pytest.param(with_coding(b"Transfer-Encoding: chunkedx"), id="chunkedx"),
    pytest.param(with_coding(b"Transfer-Encoding: chunked, identity"), id="chunked, identity"),
    pytest.param(with_coding(b"Transfer-Encoding: identity, chunked"), id="identity, chunked"),
    pytest.param(with_coding(b"Transfer-Encoding: gzip, chunked"), id="gzip, chunked"),
    pytest.param(with_coding(b"Transfer-Encoding: chunked, chunked"), id="chunked, chunked"),
    pytest.param(with_coding(b"Transfer-Encoding: identity"), id="identity alone"),
    pytest.param(with_coding(b"Transfer-Encoding: gzip"), id="gzip alone"),
    pytest.param(with_coding(b"Transfer-Encoding:"), id="an empty coding"),
    pytest.param(with_coding(b'Transfer-Encoding: "chunked"'), id="chunked in quotes"),
    pytest.param(with_coding(b"Transfer-Encoding: chunked;q=1"), id="chunked with a parameter"),
    pytest.param(with_coding(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"), id="two codings"),
    pytest.param(with_coding(b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked"), id="two codings, the other way round"),
    pytest.param(with_coding(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), id="chunked in two fields"),
    pytest.param(with_coding(b"Transfer-Encoding : chunked"), id="a space before the colon of a coding"),
    pytest.param(with_coding(b"Transfer-Encoding: \x0bchunked"), id="a vertical tab before a coding"),
    pytest.param(with_coding(b"Transfer-Encoding:\r\n chunked"), id="a folded coding"),
    pytest.param(with_coding(b"X: a", b" Transfer-Encoding: chunked"), id="a coding that starts with a space"),
    pytest.param(with_coding(b"Transfer\x00-Encoding: chunked"), id="NUL in a field's name"),
    pytest.param(with_lines(b"X: a\x00b\r\n"), id="NUL in a field's value"),
    pytest.param(with_lines(b"X : a\r\n"), id="a space before a colon"),
    pytest.param(with_lines(b"X\t: a\r\n"), id="a tab before a colon"),
    pytest.param(with_lines(b"X: a\r\n b\r\n"), id="a folded field"),
    pytest.param(with_lines(b"X: a\r\n\tb\r\n"), id="a field folded by a tab"),
    pytest.param(with_lines(b" X: a\r\n"), id="a first field that starts with a space"),
    pytest.param(with_lines(b"X\r\n"), id="a field without a colon"),
    pytest.param(with_lines(b": a\r\n"), id="a field without a name"),
    pytest.param(with_lines(b"X(: a\r\n"), id="a delimiter in a field's name"),
    pytest.param(with_lines(b"X\xff: a\r\n"), id="a byte beyond ASCII in a field's name"),
    pytest.param(with_lines(b"X: a\rY: b\r\n"), id="a bare CR in a value"),
    pytest.param(with_lines(b"X: a\nY: b\r\n"), id="a bare LF in a value"),
    pytest.param(with_lines(b"X: a\n"), id="a line that ends with a bare LF"),
    pytest.param(infer_request().replace(b"\r\n", b"\n"), id="all lines end with a bare LF"),
    pytest.param(infer_request().replace(b"\r\n\r\n", b"\r\n\n"), id="the empty line is a bare LF"),
    pytest.param(with_chunks(b"-42\r\n" + INFER + b"\r\n0\r\n\r\n"), id="a negative chunk"),
    pytest.param(with_chunks(b"+42\r\n" + INFER + b"\r\n0\r\n\r\n"), id="a signed chunk"),
    pytest.param(with_chunks(b"0x42\r\n" + INFER + b"\r\n0\r\n\r\n"), id="a chunk with 0x"),
    pytest.param(with_chunks(b"\r\n" + INFER + b"\r\n0\r\n\r\n"), id="an empty chunk size"),
    pytest.param(with_chunks(b"42 \r\n" + INFER + b"\r\n0\r\n\r\n"), id="a space after a chunk size"),
    pytest.param(with_chunks(b" 42\r\n" + INFER + b"\r\n0\r\n\r\n"), id="a space before a chunk size"),
    pytest.param(with_chunks(b"42\n" + INFER + b"\r\n0\r\n\r\n"), id="a bare LF after a chunk size"),
    pytest.param(with_chunks(b"42\r" + INFER + b"\r\n0\r\n\r\n"), id="a bare CR after a chunk size"),
    pytest.param(with_chunks(b"42;a\nb\r\n" + INFER + b"\r\n0\r\n\r\n"), id="a bare LF in a chunk's extension"),
    pytest.param(with_chunks(b"10000000000000042\r\n" + INFER + b"\r\n0\r\n\r\n"), id="a chunk size that wraps to 66"),
    pytest.param(with_chunks(b"41\r\n" + INFER + b"\r\n0\r\n\r\n"), id="a chunk longer than its size"),
    pytest.param(with_chunks(b"42\r\n" + INFER + b"0\r\n\r\n"), id="no CRLF after a chunk"),
    pytest.param(infer_request().replace(b"HTTP/1.1", b"HTTP/1.2"), id="version 1.2"),
    pytest.param(infer_request().replace(b"HTTP/1.1", b"HTTP/11"), id="version 11"),
    pytest.param(infer_request().replace(b"HTTP/1.1", b"http/1.1"), id="version in lower case"),
    pytest.param(infer_request().replace(b" HTTP/1.1", b" x HTTP/1.1"), id="a target with a space"),
    pytest.param(infer_request(model=b"m\x00"), id="NUL in the target"),
    pytest.param(infer_request(model=b"m\xff"), id="a byte beyond ASCII in the target"),
    pytest.param(infer_request(model=b"m\t"), id="a tab in the target"),
    pytest.param(infer_request().replace(b"POST ", b"POST\t"), id="a tab after the method"),
    pytest.param(infer_request().replace(b"POST ", b"PO ST "), id="a method with a space"),
    pytest.param(with_coding(_OFFER, *[b"Transfer-Encoding: chunked"] * 2), id="an offer to upgrade, and chunked in two fields"),
    pytest.param(with_lines(_OFFER + b"\r\nTransfer-Encoding: chunked\r\n"), id="an offer, a coding and then a length"),
    pytest.param(with_chunks(b"+42\r\n" + INFER).replace(b"\r\n", b"\r\n%b\r\n" % _OFFER, 1), id="an offer and a signed chunk"),
    pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="HTTP/2"),
    pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS"),
]


@pytest.mark.parametrize("ambiguous", AMBIGUOUS)
async def test_is_refused_and_ends_the_connection(ambiguous: bytes) -> None:
    async with gateway() as frontend:
        client = await frontend.connect()
        await client.send(ambiguous + infer_request(model=b"smuggled"))
        answer = await client.answer()
        assert (answer.status, answer.says_close) == (400, True)
        assert json.loads(answer.body)["error"]
        assert await client.is_closed_by_server()
        assert frontend.upstream.http.requests == []
        assert frontend.recorder.records == []


@pytest.mark.parametrize("ambiguous", AMBIGUOUS)
async def test_behind_a_good_request_only_that_one_is_answered(ambiguous: bytes) -> None:
    async with gateway() as frontend:
        frontend.upstream.http.calls.hold()
        client = await frontend.connect()
        await client.send(infer_request(model=b"good") + ambiguous + infer_request(model=b"smuggled") * 5)
        await frontend.upstream.http.calls.arrivals.get()
        frontend.upstream.http.calls.may_answer.set()
        assert [(await client.answer()).status for _ in range(2)] == [200, 400]
        assert await client.is_closed_by_server()
        assert [request.target for request in frontend.upstream.http.requests] == [b"/v2/models/good/infer"]


@pytest.mark.parametrize("framing", [_LENGTH + b"\r\n" + INFER, b"Transfer-Encoding: chunked\r\n\r\n" + _CHUNKS])
async def test_behind_an_offer_to_upgrade_the_body_is_read_and_nothing_more(framing: bytes) -> None:
    async with gateway() as frontend:
        client = await frontend.connect()
        await client.send(_START + _OFFER + b"\r\n" + framing + infer_request(model=b"smuggled"))
        answer = await client.answer()
        assert (answer.status, answer.body, answer.says_close) == (200, INFER, True)
        assert await client.is_closed_by_server()
        assert [request.target for request in frontend.upstream.http.requests] == [b"/v2/models/m/infer"]


async def test_a_field_that_says_how_the_body_is_read_cannot_be_taken_off_on_the_way() -> None:
    """`Connection` lists hop-by-hop fields (`upstream_pieces`); a body checked as raw binary must be
    forwarded as such."""
    async with gateway() as frontend:
        client = await frontend.connect()
        await client.ask(infer_request(headers=b"Connection: Inference-Header-Content-Length\r\nInference-Header-Content-Length: 0\r\n"))
        assert b"\r\nInference-Header-Content-Length: 0\r\n" in b"".join(upstream_pieces(frontend.upstream.http.requests[0], b"triton"))
