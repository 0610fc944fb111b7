"""Floods of the HTTP frontend."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perf.floods.flood import Flood, Pieces, repeated
from perf.waiting.clients import http_inference

_LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
_CLOSING = _LIVE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
_INFER = b"POST /v2/models/swallow/infer HTTP/1.1\r\nHost: localhost\r\n"
_CHAT = b'{"model":"swallow","messages":['
_SMALL_JSON = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1]}]}'


def _of(burst: bytes, opening: bytes = b"") -> Pieces:
    return lambda key: repeated(opening, burst)


def _keyed(head: bytes, key: bytes) -> bytes:
    return head + (b"x-api-key: %b\r\n" % key if key else b"")


def _inferences(body: bytes, count: int) -> Pieces:
    return lambda key: repeated(b"", (b"%bContent-Length: %d\r\n\r\n%b" % (_keyed(_INFER, key), len(body), body)) * count)


def _calls(path: bytes, body: bytes) -> Pieces:
    """POST requests of one body to another path."""
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\n" % path
    return lambda key: repeated(b"", b"%bContent-Length: %d\r\n\r\n%b" % (_keyed(head, key), len(body), body))


def _many(each: bytes, size: int, *, before: bytes = b'{"inputs":[') -> bytes:
    """JSON of that size at most, of as many of these as it has room for."""
    return before + b",".join([each] * ((size - len(before)) // (len(each) + 1) - 1)) + b"]}"


def _json(size: int) -> bytes:
    numbers = b"1.5," * (size // 4) + b"1.5"
    return b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[%d],"data":[%b]}]}' % (size // 4 + 1, numbers)


def _chunks(chunk: bytes, count: int) -> Pieces:
    burst = b"%x\r\n%b\r\n" % (len(chunk), chunk) * count
    return lambda key: repeated(_keyed(_INFER, key) + b"Transfer-Encoding: chunked\r\n\r\n", burst)


def _slow_body(key: bytes) -> Iterator[bytes]:
    return repeated(_keyed(_INFER, key) + b"Content-Length: 60000\r\n\r\n", b"x")


def _large_answers(key: bytes) -> Iterator[bytes]:
    """Inferences whose answers are as long as they are: 1 MB each."""
    request = http_inference("echo", "INPUT0", np.zeros((1, 2**18), dtype=np.float32))
    return repeated(b"", _keyed(request.partition(b"\r\n")[0] + b"\r\n", key) + request.partition(b"\r\n")[2])


def _byte_by_byte(key: bytes) -> Iterator[bytes]:
    while True:
        for byte in _LIVE:
            yield bytes((byte,))


def _once(message: bytes) -> Pieces:
    return lambda key: iter((message,))


def _head_of(fields: int) -> bytes:
    return _LIVE[:-2] + b"a:b\r\n" * fields + b"\r\n"


HTTP_FLOODS = (
    Flood("no flood: one health check after the other", "http", _of(_LIVE), awaits=True),
    Flood("health checks, 500 to a write", "http", _of(_LIVE * 500)),
    Flood("health checks, 50 connections", "http", _of(_LIVE * 500), connections=50),
    Flood("health checks whose answers are not read", "http", _of(_LIVE * 500), reads=False),
    Flood("large answers that are not read", "http", _large_answers, has_key=True, reads=False),
    Flood("inferences without a key", "http", _inferences(_SMALL_JSON, 300)),
    Flood("inferences", "http", _inferences(_SMALL_JSON, 300), has_key=True),
    Flood("bodies of 60 KB of JSON", "http", _inferences(_json(60_000), 4), has_key=True),
    Flood("bodies of 4 MB of JSON", "http", _inferences(_json(4_000_000), 1), has_key=True),
    Flood("bodies of 60 KB of empty lists", "http", _inferences(_many(b"[]", 60_000), 4), has_key=True),
    Flood("bodies of 250 KB of empty lists", "http", _inferences(_many(b"[]", 250_000), 1), has_key=True),
    Flood("bodies of 1 MB of objects", "http", _inferences(_many(b'{"":{}}', 1_000_000), 1), has_key=True),
    Flood("chats of 1 MB of empty lists", "http", _calls(b"/v1/chat/completions", _many(b"[]", 1_000_000, before=_CHAT)), has_key=True),
    Flood("batches of 1 MB of empty lists", "http", _calls(b"/v1/batches", _many(b"[]", 1_000_000)), has_key=True),
    Flood("bodies of 4 MB without a key", "http", _inferences(bytes(4_000_000), 1), refused_with="401"),
    Flood("no requests at all", "http", _of(b"no request\r\n\r\n" * 500), refused_with="400"),
    Flood("heads of 90 fields", "http", _of(_head_of(90) * 50)),
    Flood("heads of 3,000 fields", "http", _of(_head_of(3_000)), refused_with="431"),
    Flood("a head without end", "http", _of(b"x" * 4_000 + b": y\r\n", _LIVE[:-2]), refused_with="431"),
    Flood("empty lines", "http", _of(b"\r\n" * 4_000), refused_with="431"),
    Flood("chunks of one byte", "http", _chunks(b" ", 8_000), has_key=True),
    Flood("chunks of empty lines", "http", _chunks(b"\r\n\r\n", 8_000), has_key=True),
    Flood("a byte to a segment", "http", _byte_by_byte),
    Flood("slow heads, 200 connections", "http", _byte_by_byte, connections=200, pause_s=0.05),
    Flood("slow bodies, 200 connections", "http", _slow_body, connections=200, has_key=True, pause_s=0.05),
    Flood("2,000 idle connections", "http", _once(b""), connections=2_000),
    Flood("connections opened and closed", "http", _once(_CLOSING), connections=64),
)
