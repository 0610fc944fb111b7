"""Codec of HTTP/2 frames (RFC 9113, sections 4 and 6): splits incoming bytes, builds outgoing frames.

Knows no streams.
"""

from __future__ import annotations

import sys
from enum import IntEnum
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
DEFAULT_WINDOW_BYTES = 65_535
DEFAULT_MAX_FRAME_BYTES = 16_384
MAX_WINDOW_BYTES = 2**31 - 1
MAX_STREAM_ID = 2**31 - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

_HEAD = Struct(">IBI")
"""Length (24 bits) and type (8 bits) in the first word, then flags, then the stream id."""
_WORD = Struct(">I")
_SETTING = Struct(">HI")
_TWO_WORDS = Struct(">II")

DRAIN_PING = b"goodbye?"
"""Payload of the only PING that we send: its acknowledgement proves that the client has read our first
GOAWAY."""


class Setting(IntEnum):
    """Identifiers of SETTINGS parameters (RFC 9113, 6.5.2)."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Code(IntEnum):
    """Error codes of RST_STREAM and GOAWAY (RFC 9113, 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11


class Http2Error(ValueError):
    """Connection error: the peer broke the protocol, and the connection ends with a GOAWAY of
    `http2_code`."""

    def __init__(self, message: str, http2_code: Code = Code.PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.http2_code = http2_code


Frame = tuple[int, int, int, bytes | memoryview]
"""Type, flags, stream id, payload; only a large DATA frame's payload is a view, which saves a copy."""

_LARGE_BYTES = 16 * 1024

_SMALL_BYTES = 384
"""A longer frame that is not DATA, such as a head, may cost as much as many small ones: `split_more` then returns
at most one more frame, the data that belongs to the head."""

_MAX_SETTINGS = 32
"""Entries in one SETTINGS frame; nghttp2's limit. Ten parameters are defined."""


class FrameReader:
    """Incremental splitter of one connection's bytes into frames, a bounded number at a time."""

    __slots__ = ("_at", "_data", "_max_frame_bytes", "_partial", "_wanted")

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._data, self._at = b"", 0
        self._partial = bytearray()
        self._wanted = HEAD_BYTES
        """Bytes that `_partial` must reach before it can be split further."""

    @property
    def has_backlog(self) -> bool:
        """Whether `split_more` may return more frames."""
        return self._at < len(self._data)

    def feed(self, data: bytes) -> list[Frame]:
        """Add data and return all complete frames.

        Raises Http2Error: a frame is longer than we allow (MAX_FRAME_SIZE).
        """
        self.add(data)
        frames = self.split_more(sys.maxsize)
        while self.has_backlog:
            frames += self.split_more(sys.maxsize)
        return frames

    def add(self, data: bytes) -> None:
        """Add data that arrived, for `split_more`."""
        if self._partial:
            self._partial += data
            if len(self._partial) < self._wanted:
                return
            data = bytes(self._partial)
            self._partial.clear()
        elif self._at < len(self._data):
            data = self._data[self._at :] + data
        self._data, self._at = data, 0

    def split_more(self, most: int) -> list[Frame]:
        """Return the next complete frames, at most `most`. Raises as `feed` does."""
        frames: list[Frame] = []
        data, at = self._data, self._at
        end = len(data)
        while end - at >= HEAD_BYTES:
            if len(frames) >= most:
                self._at = at
                return frames
            word, flags, stream_id = _HEAD.unpack_from(data, at)
            length = word >> 8
            if length > self._max_frame_bytes:
                raise Http2Error(f"a frame of {length} bytes; at most {self._max_frame_bytes} were announced", Code.FRAME_SIZE_ERROR)
            stop = at + HEAD_BYTES + length
            if stop > end:
                self._wanted = HEAD_BYTES + length
                break
            is_large = length > _LARGE_BYTES and word & 0xFF == DATA
            payload = memoryview(data)[at + HEAD_BYTES : stop] if is_large else data[at + HEAD_BYTES : stop]
            frames.append((word & 0xFF, flags, stream_id & MAX_STREAM_ID, payload))
            at = stop
            if length > _SMALL_BYTES and word & 0xFF != DATA:  # an expensive frame: see `_SMALL_BYTES`
                most = min(most, len(frames) + 1)
        else:
            self._wanted = HEAD_BYTES
        if at < end:  # the beginning of a frame, or of a frame's head
            self._partial += data[at:]
        self._data, self._at = b"", 0
        return frames


def after_preface(preface: bytearray, data: bytes) -> bytes:
    """Collect a client's connection preface in `preface`; returns the bytes after it.

    Raises Http2Error: it is no preface.
    """
    preface += data
    # As soon as a byte differs: a client of HTTP/1.1 would wait for an answer before it sends as many.
    if not PREFACE.startswith(preface[: len(PREFACE)]):
        raise Http2Error("not HTTP/2: the connection preface is missing")
    return bytes(preface[len(PREFACE) :])


def frame_head(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    return _HEAD.pack(length << 8 | kind, flags, stream_id)


def settings_frame(settings: dict[Setting, int]) -> bytes:
    return frame_head(SETTINGS, 0, 0, 6 * len(settings)) + b"".join(_SETTING.pack(*pair) for pair in settings.items())


SETTINGS_ACK = frame_head(SETTINGS, ACK, 0, 0)


def ping(payload: bytes) -> bytes:
    return frame_head(PING, 0, 0, 8) + payload


def ping_ack(payload: bytes) -> bytes:
    return frame_head(PING, ACK, 0, 8) + payload


def goaway(last_stream_id: int, code: Code, reason: str = "") -> bytes:
    text = reason.encode()[:200]
    return frame_head(GOAWAY, 0, 0, 8 + len(text)) + _TWO_WORDS.pack(last_stream_id, code) + text


def rst_stream(stream_id: int, code: Code) -> bytes:
    return frame_head(RST_STREAM, 0, stream_id, 4) + _WORD.pack(code)


def window_update(stream_id: int, increment: int) -> bytes:
    return frame_head(WINDOW_UPDATE, 0, stream_id, 4) + _WORD.pack(increment)


def read_settings(payload: bytes) -> dict[int, int]:
    """Parse SETTINGS into values by identifier; of a repeated one the last counts. Raises Http2Error."""
    if len(payload) % _SETTING.size:
        raise Http2Error("a SETTINGS frame whose length is not a multiple of six", Code.FRAME_SIZE_ERROR)
    if len(payload) > _MAX_SETTINGS * _SETTING.size:
        raise Http2Error(f"a SETTINGS frame of more than {_MAX_SETTINGS} entries", Code.ENHANCE_YOUR_CALM)
    return dict(_SETTING.iter_unpack(payload))


def name_of_code(code: int) -> str:
    """Return an error code's name in RFC 9113, or the number of one that is not there."""
    return Code(code).name if code in Code._value2member_map_ else str(code)


def read_word(payload: bytes, what: str) -> int:
    """Parse the only number in a RST_STREAM or WINDOW_UPDATE frame. Raises Http2Error."""
    if len(payload) != 4:
        raise Http2Error(f"a {what} frame of {len(payload)} bytes instead of 4", Code.FRAME_SIZE_ERROR)
    word: int = _WORD.unpack(payload)[0]
    return word


def without_padding(flags: int, payload: bytes | memoryview, *, skip: int = 0) -> bytes | memoryview:
    """Strip a payload's padding, and the `skip` bytes of priority before it. Raises Http2Error."""
    padding = 0
    if flags & PADDED:
        if not payload:
            raise Http2Error("a padded frame without its padding's length", Code.FRAME_SIZE_ERROR)
        padding, payload = payload[0], payload[1:]
    if padding + skip > len(payload):
        raise Http2Error("padding longer than the frame")
    return payload[skip : len(payload) - padding]
