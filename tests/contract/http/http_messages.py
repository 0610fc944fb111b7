"""HTTP itself: connections, framing, methods, targets, encodings."""

from __future__ import annotations

import gzip
import zlib

from tests.contract.http.http_wire import CONTINUE, LIVE, Talk, chunked, request

INT32 = b'{"inputs":[{"name":"INT32","shape":[2],"datatype":"INT32","data":[1,-2]}]}'
INFER = "/v2/models/types/infer"
LINE = b"POST /v2/models/types/infer HTTP/1.1\r\nHost: localhost\r\n"
NESTED = b'{"inputs":[{"name":"INT32","shape":[200000],"datatype":"INT32","data":[%b]}]}' % b",".join(b"[%d]" % n for n in range(200_000))
NUMBERS = b'{"inputs":[{"name":"INT32","shape":[400000],"datatype":"INT32","data":[%b]}]}' % b",".join([b"-12345"] * 400_000)
PLAIN = request("POST", INFER, INT32)
_LINE = PLAIN.index(b"\n") + 1
"""A first line in several packets is none to Triton, now and then."""
_BYTES = tuple(PLAIN[at : at + 1] for at in range(_LINE, len(PLAIN)))
CHUNKED = LINE + b"Transfer-Encoding: chunked\r\n\r\n"
EXPECTS = LINE + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(INT32)
TRAILED = chunked(INT32)[:-2] + b"X-Trailer: a\r\n\r\n"
CUT_GZIP = gzip.compress(INT32, mtime=0)[:-9]


def packed(encoding: str, body: bytes) -> bytes:
    return request("POST", INFER, body, ("Content-Encoding", encoding))


def accepting(encodings: str) -> bytes:
    return request("POST", INFER, INT32, ("Accept-Encoding", encodings))


CONNECTIONS = [
    Talk("keep-alive: three requests on one connection", (LIVE, PLAIN, LIVE)),
    Talk("keep-alive: Connection: close", (request("GET", "/v2", b"", ("Connection", "close")),)),
    Talk("keep-alive: Connection: close on an inference", (request("POST", INFER, INT32, ("Connection", "close")),)),
    Talk("keep-alive: Connection: keep-alive", (request("POST", INFER, INT32, ("Connection", "keep-alive")),)),
    Talk("keep-alive: HTTP/1.0", (b"GET /v2 HTTP/1.0\r\n\r\n",)),
    Talk("keep-alive: HTTP/1.0 that asks to keep it", (b"GET /v2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",)),
    Talk("keep-alive: after an error of the model", (request("POST", INFER, b"{}"), PLAIN)),
    Talk("keep-alive: after a 404", (request("GET", "/nowhere"), PLAIN)),
    Talk("pipelining: GETs", (LIVE * 2,), answers=(2,), patience_s=1.5),
    Talk("pipelining: inferences", (PLAIN * 3,), answers=(3,)),
    Talk("slices: the first line, then byte by byte", (PLAIN[:_LINE], *_BYTES), answers=(0,) * len(_BYTES) + (1,)),
    Talk("slices: head and body apart", (LINE + b"Content-Length: %d\r\n\r\n" % len(INT32), INT32), answers=(0, 1)),
    Talk("head: no Host", (b"GET /v2 HTTP/1.1\r\n\r\n",)),
    Talk("head: an empty line first", (b"\r\n" + LIVE,), patience_s=1.5),
    Talk("head: lines end with a bare LF", (LIVE.replace(b"\r\n", b"\n"),)),
    Talk("head: a value of 6 KB", (request("POST", INFER, INT32, ("X-Large", "a" * 6000)),)),
    Talk("head: 9 KB", (request("POST", INFER, INT32, ("X-Large", "a" * 9000)),), patience_s=2.0),
    Talk("head: 20 KB", (request("POST", INFER, INT32, ("X-Large", "a" * 20_000)),)),
    Talk("head: 60 fields", (request("POST", INFER, INT32, *((f"X-{number}", "a") for number in range(60))),)),
    Talk("head: field names in odd case", (LINE + b"cOnTeNt-LeNgTh: %d\r\n\r\n" % len(INT32) + INT32,)),
    Talk("head: spaces around a value", (LINE + b"Content-Length:   %d  \r\n\r\n" % len(INT32) + INT32,)),
    Talk("head: Host twice", (b"GET /v2 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",)),
    Talk("head: Latin-1 in a value", (request("GET", "/v2", b"", ("X-Name", "\xe4")),)),
]

BODIES = [
    Talk("chunked: small chunks", (CHUNKED + chunked(INT32),)),
    Talk("chunked: one chunk", (CHUNKED + chunked(INT32, 1000),)),
    Talk("chunked: each chunk in a packet", (CHUNKED, chunked(INT32)[:30], chunked(INT32)[30:]), answers=(0, 0, 1)),
    Talk("chunked: an extension", (CHUNKED + b"%x;name=value\r\n%b\r\n0\r\n\r\n" % (len(INT32), INT32),)),
    Talk("chunked: a trailer", (CHUNKED + TRAILED,), patience_s=1.5),
    Talk("chunked: upper-case size", (CHUNKED + b"%X\r\n%b\r\n0\r\n\r\n" % (len(INT32), INT32),)),
    Talk("chunked: Chunked in upper case", (CHUNKED.replace(b"chunked", b"Chunked") + chunked(INT32),)),
    Talk("chunked: gzip inside", (LINE + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(gzip.compress(INT32)),)),
    Talk("expect: the body waits for 100", (EXPECTS, INT32), answers=(CONTINUE, 1)),
    Talk("expect: the body does not wait", (EXPECTS + INT32,)),
    Talk("expect: chunked", (CHUNKED[:-2] + b"Expect: 100-continue\r\n\r\n" + chunked(INT32),)),
    Talk("expect: something else", (EXPECTS.replace(b"100-continue", b"200-ok") + INT32,)),
    Talk("body: on a GET", (request("GET", "/v2", b"abc"),)),
    Talk("body: none on a POST without a length", (request("POST", INFER, length=False),)),
    Talk("body: 3 MB of JSON", (request("POST", INFER, NUMBERS),)),
    Talk("body: 200,000 nested numbers", (request("POST", INFER, NESTED),)),
    Talk("body: 3 MB of white space", (request("POST", INFER, INT32[:-3] + b" " * (3 << 20) + INT32[-3:]),)),
]

ENCODINGS = [
    Talk("gzip: request", (packed("gzip", gzip.compress(INT32)),)),
    Talk("deflate: request", (packed("deflate", zlib.compress(INT32)),)),
    Talk("deflate: without zlib's header", (packed("deflate", zlib.compress(INT32)[2:-4]),)),
    Talk("encoding: identity", (packed("identity", INT32),)),
    Talk("encoding: GZIP in upper case", (packed("GZIP", gzip.compress(INT32)),)),
    Talk("encoding: unknown", (packed("br", INT32),)),
    Talk("encoding: two", (packed("gzip, gzip", gzip.compress(gzip.compress(INT32))),)),
    Talk("gzip: corrupt", (packed("gzip", b"abcd"),)),
    Talk("gzip: cut off", (packed("gzip", CUT_GZIP),)),
    Talk("gzip: an empty body", (packed("gzip", b""),)),
    *(Talk(f"accept: {value}", (accepting(value),)) for value in (
        "gzip", "deflate", "gzip, deflate", "deflate, gzip", "gzip;q=0", "deflate;q=0.9, gzip;q=0.1", "*", "identity", "br", "GZIP", "")),
    Talk("accept: gzip of an error", (request("POST", INFER, b"{}", ("Accept-Encoding", "gzip")),)),
    Talk("accept: gzip of metadata", (request("GET", "/v2", b"", ("Accept-Encoding", "gzip")),)),
    Talk("accept: gzip both ways", (request("POST", INFER, gzip.compress(INT32), ("Content-Encoding", "gzip"), ("Accept-Encoding", "gzip")),
        )),
]  # fmt: skip

METHODS = [
    *(Talk(f"method: {method} of live", (request(method, "/v2/health/live"),)) for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH")),
    *(Talk(f"method: {method} of infer", (request(method, INFER),)) for method in ("GET", "PUT", "DELETE", "OPTIONS")),
    *(Talk(f"method: HEAD of {path}", (request("HEAD", path),), bodiless=True) for path in ("/v2/health/live", "/v2", INFER, "/nowhere")),
    Talk("method: TRACE", (request("TRACE", "/v2"),)),
    Talk("method: unknown", (request("BREW", "/v2"),)),
    Talk("method: POST of /v2", (request("POST", "/v2"),)),
    Talk("method: GET of the index", (request("GET", "/v2/repository/index"),)),
    Talk("method: POST of metadata", (request("POST", "/v2/models/types"),)),
    Talk("method: POST of config", (request("POST", "/v2/models/types/config"),)),
]

PATHS = (
    "/", "/v1", "/v2/", "/v2//health/live", "/v2/health", "/v2/health/live/", "/v2/health/liv%65", "/v2/health/live?x=1", "/V2/health/live",
    "/v2?", "/v2#x", "/v2/./health/live", "/v2/models", "/v2/models/", "/v2/models/types/", "/v2/models/types/nothing",
    "/v2/models/nowhere",
    "/v2/models/types/versions", "/v2/models/types/versions/", "/v2/models/types/versions/x", "/v2/models/types/versions/1",
    "/v2/models/types/versions/01", "/v2/models/types/versions/9", "/v2/models/types/versions/99999999999999999999",
    "/v2/models/nowhere/ready",
    "/v2/models/types/ready", "/v2/models/types/versions/1/ready", "/v2/models/types/versions/9/ready", "/v2/models/types/config",
    "/v2/models/types/versions/1/config", "/v2/models/nowhere/config", "/v2/models/chain", "/v2/models/chain/config", "/v2/models/broken",
    "/v2/models/broken/ready", "/v2/models/a%20b", "/v2/models/..", "/v2/models/versions", "/v2/health/ready", "/metrics", "*",
    "http://test/v2/health/live", "/v2/models/types/infer/", "/v2/models/stats/", "/v2/repository/models/types",
)  # fmt: skip

TARGETS = [Talk(f"path: {path}", (request("GET", path),)) for path in PATHS]

TALKS = [*CONNECTIONS, *BODIES, *ENCODINGS, *METHODS, *TARGETS]
