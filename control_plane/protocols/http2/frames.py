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
MORE = 0x100
"""Flag of a part of a DATA frame whose rest has yet to come. It is only our own: a frame's flags have eight bits."""

_HEAD = Struct(">IBI")
"""Length (24 bits) and type (8 bits) in the first word, then flags, then the stream id."""
_WORD = Struct(">I")
_SETTING = Struct(">HI")
_TWO_WORDS = Struct(">II")

DRAIN_PING = b"goodbye?"
"""Payload of the only PING that a server's end sends: its acknowledgement proves that the client has read our first
GOAWAY."""
KEEPALIVE_PING = b"anybody?"
"""Payload of the PING by which a client's end asks for a sign of life."""


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
_LEAST_PART_BYTES = 2 * 1024
"""Least of a large DATA frame that is returned before the rest has come. Less is kept, and copied with all that comes next."""
_RUN_BYTES = 256 * 1024
"""Payload at which a run of DATA frames ends: what one read of a socket has, and takes 0.1 ms."""

_SMALL_BYTES = 384
"""A longer frame that is not DATA, such as a head, may cost as much as many small ones: `split_more` then returns
at most one more frame, the data that belongs to the head."""

_MAX_SETTINGS = 32
"""Entries in one SETTINGS frame; nghttp2's limit. Ten parameters are defined."""


class FrameReader:
    """Incremental splitter of one connection's bytes into frames, a bounded number at a time.

    With `in_runs`, large DATA frames of one stream that came together are returned as one, and of one that has come in
    part, that part (`MORE`). Many peers cut messages into frames of 16 KB, whatever they are allowed, and the steps that
    each frame takes cost more than to copy its bytes.
    """

    __slots__ = ("_at", "_begun", "_data", "_in_runs", "_left", "_max_frame_bytes", "_partial", "_wanted")

    def __init__(self, max_frame_bytes: int, *, in_runs: bool = False) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._in_runs = in_runs
        self._begun, self._left = (0, 0), 0
        """Flags and stream id of a large DATA frame whose head has been split off, and how much of its payload has not."""
        self._data, self._at = b"", 0
        self._partial = bytearray()
        self._wanted = HEAD_BYTES
        """Bytes that `_partial` must reach before it can be split further."""

    @property
    def has_backlog(self) -> bool:
        """Whether `split_more` may return more frames."""
        return self._at < len(self._data)

    @property
    def left_bytes(self) -> int:
        """Bytes that came of which `split_more` has returned no frame."""
        return len(self._data) - self._at + len(self._partial)

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
            if len(self._partial) + len(data) < self._wanted:
                self._partial += data
                return
            data = b"".join((self._partial, data))
            self._partial.clear()
        elif self._at < len(self._data):
            data = self._data[self._at :] + data
        self._data, self._at = data, 0

    def split_more(self, most: int) -> list[Frame]:
        """Return the next complete frames, at most `most`. Raises as `feed` does."""
        frames: list[Frame] = []
        data, at = self._data, self._at
        end = len(data)
        while end - at >= HEAD_BYTES or self._left:
            if len(frames) >= most:
                self._at = at
                return frames
            if self._left:
                self._wanted = min(self._left, _LEAST_PART_BYTES)
                if end - at < self._wanted:
                    break
                at = self._split_run(frames, at)
                continue
            word, flags, stream_id = _HEAD.unpack_from(data, at)
            length = word >> 8
            if length > self._max_frame_bytes:
                raise Http2Error(f"a frame of {length} bytes; at most {self._max_frame_bytes} were announced", Code.FRAME_SIZE_ERROR)
            stop = at + HEAD_BYTES + length
            is_large = length >= _LARGE_BYTES and word & 0xFF == DATA
            if is_large and self._in_runs and not flags & PADDED:
                self._begun, self._left, at = (flags, stream_id & MAX_STREAM_ID), length, at + HEAD_BYTES
                continue
            if stop > end:
                self._wanted = HEAD_BYTES + length
                break
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

    def _split_run(self, frames: list[Frame], at: int) -> int:
        """Append what has come, from `at` on, of the large DATA frame that has begun and of those right behind it, as one
        frame; returns where that ends."""
        data, end = self._data, len(self._data)
        (flags, stream_id), left, size, view = self._begun, self._left, 0, memoryview(data)
        parts = list[memoryview]()
        while True:
            stop = min(at + left, end)
            parts.append(view[at:stop])
            size, left, at = size + stop - at, left - (stop - at), stop
            if left or flags & END_STREAM or size >= _RUN_BYTES or end - at < HEAD_BYTES:
                break
            word, next_flags, next_id = _HEAD.unpack_from(data, at)
            if next_id & MAX_STREAM_ID != stream_id or not self._extends_run(word, next_flags):
                break
            flags, left, at = next_flags, word >> 8, at + HEAD_BYTES
        self._begun, self._left = (flags, stream_id), left
        # A view keeps all that came with it in memory, so it is none where most of that is not its own.
        payload = parts[0] if len(parts) == 1 and 2 * size >= end else b"".join(parts)
        frames.append((DATA, MORE if left else flags, stream_id, payload))
        return at

    def _extends_run(self, word: int, flags: int) -> bool:
        """Whether a frame may be joined to one of its stream before it: of small ones only the last, as a read may have
        thousands."""
        is_worth_it = word >> 8 >= _LARGE_BYTES or flags & END_STREAM != 0
        return word & 0xFF == DATA and is_worth_it and not flags & PADDED and word >> 8 <= self._max_frame_bytes


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
