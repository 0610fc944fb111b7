"""Attempts to have two parsers read one stream in two ways that `tests/wire/http/test_http_smuggling` does not make.

Against the frontend with a recording upstream: each ends with a refusal and a closed connection, or with exactly one request.
"""

from __future__ import annotations

import pytest

from tests.wire.gateway import INFER, gateway, infer_request

HIDDEN = infer_request(model=b"smuggled")
LINE = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(INFER)


def ending(*lines: bytes, body: bytes = INFER) -> bytes:
    return LINE + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


REFUSED = [
    pytest.param(ending(b"Content-Length: %d" % len(INFER), b"Transfer-Encoding:\tchunked"), id="a tab before a coding"),
    pytest.param(ending(b"Content-Length: 0", b"Content-Length: %d" % len(HIDDEN), body=HIDDEN), id="a length that hides a request"),
    pytest.param(ending(b"Transfer-Encoding: chunked", b"Content-Length: 4", body=b"1\r\nZ\r\nQ\r\n"), id="TE.CL"),
    pytest.param(ending(b"Content-Length: 6", b"Transfer-Encoding: chunked", body=b"0\r\n\r\nX"), id="CL.TE"),
    pytest.param(ending(b"Transfer-Encoding: xchunked", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"), id="TE.TE"),
    pytest.param(ending(b"Transfer-encoding: cow", b"Content-Length: 3", body=b"abc"), id="an unknown coding and a length"),
    pytest.param(ending(b"X: y\r\n\tTransfer-Encoding: chunked", LENGTH[:-2]), id="a coding folded into a value"),
    pytest.param(ending(b"Content-Length : 3", body=b"abc"), id="a space before a length's colon"),
    pytest.param(ending(b"Content-Length: 3\x00", body=b"abc"), id="NUL behind a length"),
    pytest.param(ending(b"Content-Length: \x0b3", body=b"abc"), id="a vertical tab before a length"),
    pytest.param(ending(b"Content-Length: 3;x=y", body=b"abc"), id="a length with a parameter"),
    pytest.param(ending(b"Content-Length: 3, 3", body=b"abc"), id="a length twice in one field"),
    pytest.param(ending(b"Content-Length: \xb2", body=b"ab"), id="a superscript digit"),
    pytest.param(ending(b"Content-Length: 1_0", body=b"0123456789"), id="an underscore between digits"),
    pytest.param(ending(b"Transfer-Encoding: chunked", body=b"1_0\r\n" + b"a" * 16 + b"\r\n0\r\n\r\n"), id="an underscore in a chunk size"),
    pytest.param(ending(b"Transfer-Encoding: chunked", body=b"1\r\nab\r\n0\r\n\r\n"), id="a chunk with a byte too many"),
    pytest.param(ending(b"Transfer-Encoding: chunked", body=b"g\r\nabc\r\n0\r\n\r\n"), id="a chunk size that is no digit"),
    pytest.param(ending(b"Transfer-Encoding: chunked", body=b"0\r\nX: y\r\n z\r\n\r\n"), id="a folded trailer"),
    pytest.param(ending(b"Transfer-Encoding: chunked", body=b"0\r\nX\r\n\r\n"), id="a trailer without a colon"),
    pytest.param(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nX: b\rGET /v2 HTTP/1.1\r\n\r\n", id="a request behind a bare CR"),
    pytest.param(b"GET /v2/health/live\r\n\r\n", id="HTTP/0.9"),
    pytest.param(b"GET /v2\\..\\x HTTP/1.1\x00\r\nHost: localhost\r\n\r\n", id="NUL behind the version"),
    pytest.param(b"GET /v2/\x7f HTTP/1.1\r\nHost: localhost\r\n\r\n", id="DEL in the target"),
    pytest.param(b"CONNECT triton:8000 HTTP/1.1\r\nHost: localhost\r\n\r\n", id="CONNECT"),
]


@pytest.mark.parametrize("attempt", REFUSED)
async def test_it_is_refused_and_what_follows_is_not_read(attempt: bytes) -> None:
    async with gateway() as frontend:
        client = await frontend.connect()
        await client.send(attempt + HIDDEN)
        answer = await client.answer()
        assert 400 <= answer.status < 500, answer
        assert answer.says_close
        assert await client.is_closed_by_server()
        assert frontend.upstream.http.requests == []


ONE = [
    pytest.param(infer_request(headers=b"Connection: Content-Length\r\n"), id="Content-Length listed in Connection"),
    pytest.param(infer_request(headers=b"Connection: close, Content-Type\r\n"), id="several listed in Connection"),
    pytest.param(
        infer_request(headers=b"X-Forwarded-Host: evil\r\nX-Original-URL: /v2/repository/models/x/load\r\n"), id="rewriting fields"
    ),
    pytest.param(infer_request(headers=b"X-HTTP-Method-Override: DELETE\r\n"), id="another method in a field"),
    pytest.param(infer_request(headers=b"Transfer_Encoding: chunked\r\n"), id="an underscore for a hyphen"),
    pytest.param(infer_request(headers=b"Content_Length: 0\r\n"), id="an underscore in a length's name"),
    pytest.param(infer_request(headers=b"Trailer: Content-Length\r\n"), id="a trailer announced"),
]


@pytest.mark.parametrize("request_bytes", ONE)
async def test_it_is_one_request_to_everybody(request_bytes: bytes) -> None:
    """Whatever Triton makes of the fields that go on: the length it gets is the one that was read here."""
    async with gateway() as frontend:
        client = await frontend.connect()
        assert (await client.ask(request_bytes)).status == 200
        assert [each.body for each in frontend.upstream.http.requests] == [INFER]
