"""Bytes for the frontends: nonsense, and valid traffic that was spoilt a little; in slices of any size."""

from __future__ import annotations

from hypothesis import strategies as st

from control_plane.protocols.grpc import frame_message
from control_plane.protocols.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS_ACK,
    Setting,
    frame_head,
    rst_stream,
    settings_frame,
    window_update,
)
from control_plane.protocols.http2.headers import encode_fields
from tests.wire.gateway import INFER, LIVE, infer_request

CHUNKED = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(INFER), INFER)
HTTP = (
    LIVE,
    infer_request(),
    infer_request(headers=b"Expect: 100-continue\r\n"),
    infer_request(headers=b"Content-Encoding: gzip\r\n"),
    infer_request(headers=b"Inference-Header-Content-Length: 10\r\n"),
    CHUNKED,
    b"POST /v2/models/m/generate_stream HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /v2/repository/models/m/load HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n",
    b"HEAD /v2 HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n",
)


def call_head(method: bytes) -> bytes:
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", method),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
    return encode_fields((*fields, (b"grpc-timeout", b"5S")))


def grpc_call(stream_id: int, method: bytes, message: bytes = b"") -> bytes:
    """One whole unary call as frames."""
    block, body = call_head(method), frame_message(message)
    return frame_head(HEADERS, END_HEADERS, stream_id, len(block)) + block + frame_head(DATA, END_STREAM, stream_id, len(body)) + body


_SERVICE = b"/inference.GRPCInferenceService/"
_BLOCK = call_head(_SERVICE + b"ModelStreamInfer")
LIVE_CALL = grpc_call(1, _SERVICE + b"ServerLive")
HTTP2 = (
    settings_frame({Setting.INITIAL_WINDOW_SIZE: 100}),
    SETTINGS_ACK,
    LIVE_CALL,
    grpc_call(3, _SERVICE + b"ModelInfer", b"\x0a\x01m"),
    grpc_call(5, _SERVICE + b"RepositoryModelLoad", b"\x12\x01m"),
    grpc_call(7, b"/nothing"),
    frame_head(HEADERS, 0, 9, 10) + _BLOCK[:10] + frame_head(CONTINUATION, END_HEADERS, 9, len(_BLOCK) - 10) + _BLOCK[10:],
    frame_head(DATA, 0, 9, 8) + frame_message(b"abc"),
    window_update(0, 1000),
    rst_stream(3, 8),
)


@st.composite
def spoilt(draw: st.DrawFn, valid: tuple[bytes, ...]) -> bytes:
    """Some valid pieces one after another, of which some bytes are replaced, removed or added."""
    data = b"".join(draw(st.lists(st.sampled_from(valid), min_size=1, max_size=5)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=6)) + data[at + draw(st.integers(0, 6)) :]
    return data


@st.composite
def slices(draw: st.DrawFn, data: st.SearchStrategy[bytes]) -> list[bytes]:
    """The same bytes in pieces."""
    whole = draw(data)
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    return [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


HTTP_TRAFFIC = slices(st.one_of(spoilt(HTTP), st.binary(max_size=300)))
HTTP2_TRAFFIC = slices(st.one_of(spoilt(HTTP2).map(lambda data: PREFACE + data), spoilt((PREFACE, *HTTP2)), st.binary(max_size=300)))
