"""Whitespace around a field's value is not part of it (RFC 9110, 5.5), in every parser here."""

from __future__ import annotations

import gzip
import json

import pytest

from control_plane.protocols.grpc import read_head
from tests.wire.gateway import INFER, gateway, infer_request

TENSOR = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}'
CHUNKED = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: %b\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("line", "body"),
    [
        pytest.param(b"Inference-Header-Content-Length:   %d " % len(TENSOR), TENSOR + b"abcd", id="a length"),
        pytest.param(b"Inference-Header-Content-Length:\t%d\t \t" % len(TENSOR), TENSOR + b"abcd", id="tabs"),
        pytest.param(b"Content-Encoding: gzip  ", gzip.compress(INFER), id="an encoding"),
        pytest.param(b"tidegate-timeout-ms:  5000 ", INFER, id="a time"),
        pytest.param(b"Expect: 100-nothing ", INFER, id="another expectation"),
    ],
)
async def test_over_http(line: bytes, body: bytes) -> None:
    async with gateway() as it:
        client = await it.connect()
        for _ in range(2):  # the second head is a known one
            answer = await client.ask(infer_request(body, headers=line + b"\r\n"))
            assert answer.status == 200, answer.body
        assert all(value == value.strip() for request in it.upstream.http.requests for _, value in request.headers)


@pytest.mark.parametrize("encoding", [b"chunked ", b"  chunked", b"chunked\t"])
async def test_where_a_body_ends_is_read_alike_or_not_at_all(encoding: bytes) -> None:
    async with gateway() as it:
        client = await it.connect()
        answer = await client.ask(CHUNKED % (encoding, len(INFER), INFER))
        assert (answer.status, [request.body for request in it.upstream.http.requests]) in ((200, [INFER]), (400, []))


async def test_an_id_with_blanks_is_the_id_without() -> None:
    async with gateway() as it:
        await (await it.connect()).ask(infer_request(INFER, headers=b"x-request-id: \t one two \t\r\n"))
        assert it.upstream.http.requests[0].request_id == "one two"


def test_over_grpc() -> None:
    fields = (
        (b":method", b"POST"),
        (b":path", b"/a.B/C"),
        (b"content-type", b"application/grpc "),
        (b"grpc-timeout", b" 1S "),
        (b"authorization", b"\tBearer x "),
        (b"x-a", b" b c "),
    )
    head = read_head(fields)
    assert (head.timeout_s, head.authorization, dict(head.metadata)[b"x-a"]) == (1.0, "Bearer x", b"b c")


async def test_the_text_of_a_body_keeps_its_own() -> None:
    text = json.dumps({"inputs": [{"name": "X", "datatype": "BYTES", "shape": [1], "data": [" a "]}]}).encode()
    async with gateway() as it:
        assert (await (await it.connect()).ask(infer_request(text))).status == 200
        assert it.upstream.http.requests[0].body == text
