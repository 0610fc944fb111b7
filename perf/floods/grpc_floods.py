"""Floods of the gRPC frontend: HTTP/2 frames by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct

import numpy as np

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.frames import Code, Setting
from control_plane.protocols.http2.headers import NO_TABLE, Fields, encode_fields
from control_plane.protocols.kserve.messages import service_pb2
from perf.floods.flood import Flood, Pieces, repeated
from perf.load.echo_requests import GRPC_PATH, GRPC_SERVICE, framed, grpc_request

_STREAMING = GRPC_SERVICE + "ModelStreamInfer"
_BURST = 500
"""Streams to a write."""
_LAST_STREAM = 2**30
"""Far beyond what a flood gets to."""
_MESSAGE = framed(grpc_request("swallow", "INPUT0", np.zeros(1, dtype=np.float32)))
_MOST_DATA_BYTES = 2**14
_WORD = Struct(">I")


def _frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream_id: int = 0) -> bytes:
    return h2.frame_head(kind, flags, stream_id, len(payload)) + payload


def _opening(settings: dict[Setting, int] | None = None) -> bytes:
    """Return the opening of a client that makes room for every answer, and has acknowledged that there is no header table."""
    return h2.PREFACE + h2.settings_frame(settings or {}) + h2.SETTINGS_ACK + h2.window_update(0, 2**30)


def _head(key: bytes, path: str = GRPC_PATH) -> bytes:
    fields: Fields = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"localhost"))
    keyed: Fields = ((b"x-api-key", key),) if key else ()
    return NO_TABLE + encode_fields((*fields, (b"te", b"trailers"), (b"content-type", b"application/grpc"), *keyed))


def _begun(stream_id: int, block: bytes) -> bytes:
    return _frame(h2.HEADERS, block, flags=h2.END_HEADERS, stream_id=stream_id)


def _whole(stream_id: int, block: bytes) -> bytes:
    return _begun(stream_id, block) + _frame(h2.DATA, _MESSAGE, flags=h2.END_STREAM, stream_id=stream_id)


def _outputs(number: int) -> Callable[[int, bytes], bytes]:
    """Whole calls that name so many outputs, of two bytes each."""
    request = grpc_request("swallow", "INPUT0", np.zeros(1, dtype=np.float32))
    request.outputs.extend([service_pb2.ModelInferRequest.InferRequestedOutputTensor()] * number)
    message = framed(request)
    parts = [message[at : at + _MOST_DATA_BYTES] for at in range(0, len(message), _MOST_DATA_BYTES)]
    flags = [0] * (len(parts) - 1) + [h2.END_STREAM]

    def call(stream_id: int, block: bytes) -> bytes:
        data = [_frame(h2.DATA, part, flags=flag, stream_id=stream_id) for part, flag in zip(parts, flags, strict=True)]
        return _begun(stream_id, block) + b"".join(data)

    return call


def _reset(stream_id: int) -> bytes:
    return h2.rst_stream(stream_id, Code.CANCEL)


def _of(burst: bytes, opening: bytes = b"") -> Pieces:
    return lambda key: repeated(_opening() + opening, burst)


def _streams(of_stream: Callable[[int, bytes], bytes], burst: int = _BURST) -> Pieces:
    """Streams one after the other, each as `of_stream` says of its number and its header block."""

    def pieces(key: bytes) -> Iterator[bytes]:
        block = _head(key)
        yield _opening()
        for first in range(1, _LAST_STREAM, 2 * burst):
            yield b"".join([of_stream(stream_id, block) for stream_id in range(first, first + 2 * burst, 2)])

    return pieces


def _on_a_stream(burst: bytes, path: str = GRPC_PATH) -> Pieces:
    """One call, of which more and more comes."""
    return lambda key: repeated(_opening() + _begun(1, _head(key, path)), burst)


def _bombs(key: bytes) -> Iterator[bytes]:
    """A field of 4,000 bytes goes into the table; a head of 16 KB, a byte to a field, then stands for 64 MB."""
    kept = b"\x40\x01a" + _string(b"v" * 4_000)
    yield h2.PREFACE + h2.settings_frame({}) + _begun(1, kept)
    for stream_id in range(3, _LAST_STREAM, 2):
        yield _begun(stream_id, b"\xbe" * 16_000)


def _heads(fields: bytes) -> Pieces:
    """Calls whose heads end in these fields, and differ from each other, so that each has to be read."""

    def pieces(key: bytes) -> Iterator[bytes]:
        yield _opening()
        for stream_id in range(1, _LAST_STREAM, 2):
            block = _head(key) + b"\0\x04vary\x04" + _WORD.pack(0x40404040 | stream_id) + fields
            yield _frame(h2.HEADERS, block, flags=h2.END_HEADERS | h2.END_STREAM, stream_id=stream_id)

    return pieces


def _string(text: bytes, *, is_coded: bool = False) -> bytes:
    """A string of HPACK's that is longer than 126 bytes."""
    rest, digits = len(text) - 127, bytearray((0xFF if is_coded else 0x7F,))
    while rest >= 0x80:
        digits.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((*digits, rest)) + text


def _windows_of_a_thousand_calls(key: bytes) -> Iterator[bytes]:
    """A thousand answers wait for room; then the room for all of them is changed and changed back."""
    yield _opening({Setting.INITIAL_WINDOW_SIZE: 0}) + b"".join([_whole(2 * number + 1, _head(key)) for number in range(1_000)])
    more, less = (h2.settings_frame({Setting.INITIAL_WINDOW_SIZE: size}) for size in (1, 0))
    while True:
        yield (more + less) * 200


def _byte_by_byte(key: bytes) -> Iterator[bytes]:
    for byte in _opening():
        yield bytes((byte,))
    for stream_id in range(1, _LAST_STREAM, 2):
        for byte in _whole(stream_id, _head(key)):
            yield bytes((byte,))


def _slow_body(key: bytes) -> Iterator[bytes]:
    """A message of 60,000 bytes, of which one comes at a time."""
    announced = _frame(h2.DATA, b"\0" + _WORD.pack(60_000), stream_id=1)
    return repeated(_opening() + _begun(1, _head(key)) + announced, _frame(h2.DATA, b"x", stream_id=1))


def _idle(key: bytes) -> Iterator[bytes]:
    yield _opening()


_CALM = "ENHANCE_YOUR_CALM"
_PING = _frame(h2.PING, bytes(8))
_OVER = _begun(1, _head(b"")) + _reset(1)
_MANY_SETTINGS = b"".join([identifier.to_bytes(2, "big") + b"\0\0\0\1" for identifier in range(10, 40_010)])

GRPC_FLOODS = (
    Flood("no flood: one call after the other", "grpc", _streams(_whole, burst=1), has_key=True, awaits=True),
    Flood("streams reset at once", "grpc", _streams(lambda n, block: _begun(n, block) + _reset(n)), refused_with=_CALM),
    Flood("streams reset at once, 50 connections", "grpc", _streams(lambda n, block: _begun(n, block) + _reset(n)), 50, refused_with=_CALM),
    Flood("calls reset at once", "grpc", _streams(lambda n, block: _whole(n, block) + _reset(n)), has_key=True, refused_with=_CALM),
    Flood("calls begun and never ended", "grpc", _streams(_begun), has_key=True, refused_with=_CALM),
    Flood("calls without a key", "grpc", _streams(_whole)),
    Flood("calls", "grpc", _streams(_whole), has_key=True),
    Flood("calls without a key whose answers are not read", "grpc", _streams(_whole), reads=False),
    Flood("calls whose answers are not read", "grpc", _streams(_whole), has_key=True, reads=False),
    Flood("calls that name 1,000 outputs", "grpc", _streams(_outputs(1_000), burst=8), has_key=True),
    Flood("calls that name 100,000 outputs", "grpc", _streams(_outputs(100_000), burst=2), has_key=True),
    Flood("unknown frames", "grpc", _of(_frame(0xF0) * 20_000), refused_with=_CALM),
    Flood("unknown frames of 1 KB", "grpc", _of(_frame(0xF0, bytes(1_000)) * 200), refused_with=_CALM),
    Flood("GOAWAY", "grpc", _of(_frame(h2.GOAWAY, bytes(8)) * 10_000), refused_with=_CALM),
    Flood("SETTINGS", "grpc", _of(h2.settings_frame({}) * 20_000), refused_with=_CALM),
    Flood("acknowledgements of SETTINGS", "grpc", _of(h2.SETTINGS_ACK * 20_000), refused_with=_CALM),
    Flood("SETTINGS of 40,000 entries", "grpc", _of(_frame(h2.SETTINGS, _MANY_SETTINGS)), refused_with=_CALM),
    Flood("windows of a thousand calls", "grpc", _windows_of_a_thousand_calls, has_key=True, refused_with=_CALM),
    Flood("PING", "grpc", _of(_PING * 10_000), refused_with=_CALM),
    Flood("PING whose answers are not read", "grpc", _of(_PING * 10_000), reads=False),
    Flood("acknowledgements of PING", "grpc", _of(_frame(h2.PING, bytes(8), flags=h2.ACK) * 10_000), refused_with=_CALM),
    Flood("PRIORITY", "grpc", _of(_frame(h2.PRIORITY, bytes(5), stream_id=3) * 10_000), refused_with=_CALM),
    Flood("WINDOW_UPDATE", "grpc", _of(h2.window_update(0, 1) * 10_000), refused_with=_CALM),
    Flood("empty DATA", "grpc", _on_a_stream(_frame(h2.DATA, stream_id=1) * 20_000), has_key=True, refused_with=_CALM),
    Flood("DATA of a byte", "grpc", _on_a_stream(_frame(h2.DATA, b"\0", stream_id=1) * 20_000), has_key=True, refused_with=_CALM),
    Flood("DATA for a call that is over", "grpc", _of(_frame(h2.DATA, b"x", stream_id=1) * 20_000, _OVER), refused_with=_CALM),
    Flood("CONTINUATION", "grpc", _of(_frame(h2.CONTINUATION, stream_id=1) * 20_000, _frame(h2.HEADERS, stream_id=1)), refused_with=_CALM),
    Flood("HPACK bombs", "grpc", _bombs, refused_with=_CALM),
    Flood("heads of 90 fields", "grpc", _heads(b"\0\x01a\x01b" * 83)),
    Flood("heads of 3,000 fields", "grpc", _heads(b"\0\x01a\x01b" * 3_000), refused_with=_CALM),
    Flood("heads of 15 KB in Huffman's code", "grpc", _heads(b"\0\x01h" + _string(bytes(9_000), is_coded=True)), refused_with=_CALM),
    Flood(
        "messages of no bytes on a stream", "grpc", _on_a_stream(_frame(h2.DATA, bytes(5) * 3_200, stream_id=1), _STREAMING), has_key=True
    ),
    Flood("a byte to a segment", "grpc", _byte_by_byte),
    Flood("slow heads, 200 connections", "grpc", _byte_by_byte, connections=200, pause_s=0.05),
    Flood("slow bodies, 200 connections", "grpc", _slow_body, connections=200, has_key=True, pause_s=0.05),
    Flood("2,000 idle connections", "grpc", _idle, connections=2_000),
)
