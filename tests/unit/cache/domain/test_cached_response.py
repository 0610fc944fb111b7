from __future__ import annotations

import gzip
import json

import pytest
from tritonclient.grpc import service_pb2

from control_plane.cache.domain.cached_response import (
    decode_grpc,
    decode_http,
    encode_grpc,
    encode_http,
    forbids_cached_answer,
    mark_grpc,
    mark_http,
)
from control_plane.core.infer_call import CacheStatus
from control_plane.protocols.grpc import GrpcAnswer, message_answer, status_answer
from control_plane.protocols.http1 import HttpAnswer, make_answer

REST = b'"model_name":"m","model_version":"1","outputs":[]}'
DATA = b"\x00\x01{}\r\n\r\n"


def triton_answer(request_id: str, *, data: bytes = b"", encode: bool = False) -> HttpAnswer:
    """As Triton 2.51 writes it: the id first, if there is one, and binary data after the JSON."""
    text = b"{" + (b'"id":%b,' % json.dumps(request_id, ensure_ascii=False).encode() if request_id else b"") + REST
    body = gzip.compress(text + data) if encode else text + data
    lines = [b"HTTP/1.1 200 OK", b"Content-Type: application/octet-stream" if data else b"Content-Type: application/json"]
    if data:
        lines.append(b"Inference-Header-Content-Length: %d" % len(text))
    if encode:
        lines.append(b"Content-Encoding: gzip")
    lines.append(b"Content-Length: %d" % len(body))
    return HttpAnswer(200, b"\r\n".join(lines) + b"\r\n\r\n", body)


class TestHttp:
    @pytest.mark.parametrize("data", [b"", DATA], ids=["JSON", "binary"])
    @pytest.mark.parametrize(
        ("first", "second"), [("", ""), ("", "日本"), ("7", ""), ("7", "8"), ('quote " and \\', 'a longer "id"'), ("é", "8")]
    )
    @pytest.mark.parametrize("encode", [False, True], ids=["plain", "gzip"])
    def test_another_caller_gets_the_answer_with_its_own_id(self, data: bytes, first: str, second: str, encode: bool) -> None:
        kept = encode_http(triton_answer(first, data=data, encode=encode), request_id=first)
        assert kept is not None
        given = decode_http(kept, CacheStatus.HIT, request_id=second)
        expected = triton_answer(second, data=data)
        assert given == HttpAnswer(200, expected.head[:-2] + b"tidegate-cache: hit\r\n\r\n", expected.body)

    @pytest.mark.parametrize(
        ("answer", "request_id"),
        [
            pytest.param(make_answer(400, b'{"error":"no"}'), "", id="an error"),
            pytest.param(triton_answer("7"), "", id="an id that nobody gave"),
            pytest.param(triton_answer(""), "7", id="no id where one was given"),
            pytest.param(make_answer(200, b""), "", id="nothing"),
            pytest.param(make_answer(200, b"[1]"), "", id="no object"),
            pytest.param(HttpAnswer(200, b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", b"garbage"), "", id="not what it says"),
        ],
    )
    def test_what_is_not_understood_is_not_kept(self, answer: HttpAnswer, request_id: str) -> None:
        assert encode_http(answer, request_id=request_id) is None

    def test_what_holds_for_one_answer_alone_is_not_kept(self) -> None:
        came = triton_answer("")
        own = b"\r\nDate: Thu, 26 Nov 2026 15:00:00 GMT\r\nset-cookie: a=b; Path=/\r\nEndpoint-Load-Metrics: {}\r\nX-Kept: 1\r\n\r\n"
        kept = encode_http(HttpAnswer(200, came.head[:-4] + own, came.body), request_id="")
        assert kept is not None
        given = decode_http(kept, CacheStatus.HIT, request_id="").head.lower()
        assert b"\r\nx-kept: 1\r\n" in given
        assert not any(name in given for name in (b"date:", b"set-cookie:", b"endpoint-load-metrics:"))

    def test_a_computed_answer_says_so_and_is_else_what_came(self) -> None:
        answer = triton_answer("7", data=DATA)
        marked = mark_http(answer, CacheStatus.MISS)
        assert marked.head.replace(b"tidegate-cache: miss\r\n", b"") == answer.head
        assert marked.body == answer.body


def answer(request_id: str) -> GrpcAnswer:
    message = service_pb2.ModelInferResponse(model_name="m", model_version="1", id=request_id, raw_output_contents=[b"xyz"])
    return message_answer(message.SerializeToString())


class TestGrpc:
    @pytest.mark.parametrize("first", ["", "7"])
    @pytest.mark.parametrize("second", ["", "é" * 200])
    def test_another_caller_gets_the_answer_with_its_own_id(self, first: str, second: str) -> None:
        kept = encode_grpc(answer(first))
        assert kept is not None
        given = decode_grpc(kept, CacheStatus.JOINED, request_id=second)
        message = service_pb2.ModelInferResponse.FromString(given.message)
        assert message == service_pb2.ModelInferResponse.FromString(answer(second).message)
        assert (given.code, given.trailers[-1]) == (0, (b"tidegate-cache", b"joined"))

    @pytest.mark.parametrize(
        "unkept",
        [
            pytest.param(status_answer(13, "no"), id="an error"),
            pytest.param(GrpcAnswer(0, (), (), ()), id="nothing"),
            pytest.param(GrpcAnswer(0, (), (b"\1\0\0\0\1x",), ()), id="compressed"),
            pytest.param(GrpcAnswer(0, (), (b"\0\0\0\0\2\x0a\xff",), ()), id="no protobuf"),
        ],
    )
    def test_what_is_not_understood_is_not_kept(self, unkept: GrpcAnswer) -> None:
        assert encode_grpc(unkept) is None

    def test_a_computed_answer_says_so_in_its_trailers(self) -> None:
        marked = mark_grpc(answer("7"), CacheStatus.BYPASS)
        assert marked.trailers == (*answer("7").trailers, (b"tidegate-cache", b"bypass"))
        assert marked.body == answer("7").body


@pytest.mark.parametrize(
    ("value", "forbids"),
    [(None, False), ("", False), ("max-age=10", False), ("no-cache", True), ("max-age=10, No-Store", True), ("max-age=0", True)],
)
def test_who_wants_it_computed(value: str | None, forbids: bool) -> None:
    assert forbids_cached_answer(value) is forbids
