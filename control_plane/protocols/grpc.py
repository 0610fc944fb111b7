"""Codec of gRPC over HTTP/2: request heads, length-prefixed messages, statuses.

Source: gRPC's "PROTOCOL-HTTP2". Used by the gRPC frontend and by the adapter that calls Triton. Metadata and
messages are forwarded as the bytes they arrived as; no message is parsed here.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from urllib.parse import quote_from_bytes, unquote_to_bytes

from control_plane.core.algorithms.bounded_cache import BoundedCache
from control_plane.core.errors import InvalidRequest, NotSupported, PayloadTooLarge
from control_plane.core.infer_call import SendFailure
from control_plane.protocols.http2.headers import Fields, size_of
from control_plane.protocols.inflating import inflated_pieces
from control_plane.protocols.kserve.requests.body_limits import InflateBound
from control_plane.protocols.server_timing import ASKED_BY

PREFIX_BYTES = 5
"""Size of the prefix of each message: one byte that says whether it is compressed, four bytes of length."""

_CONTENT_TYPE = b"application/grpc"
_IS_GRPC = re.compile(rb"application/grpc(?:[+;]|\Z)")
_NAME = re.compile(rb"[0-9a-z_.-]+")
_VALUE = re.compile(rb"[\x20-\x7e]*")
"""A metadata value. Metadata is forwarded over a connection that many callers share, and one bad field may
make the upstream close that connection."""
_BLANKS = b" \t"
"""Whitespace around a value, which is not part of it (RFC 9110, 5.5)."""
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_UNIT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_PRINTABLE = bytes(range(0x20, 0x25)) + bytes(range(0x26, 0x7F))
_AUTHORIZATION, _API_KEY, _FORWARDED_FOR = b"authorization", b"x-api-key", b"x-forwarded-for"
_ASKS_TIMES = ASKED_BY.encode()
_NOT_FORWARDED = frozenset((b"te", b"grpc-timeout", _AUTHORIZATION, _API_KEY))
"""`te` and the timeout are set anew for the upstream call; credentials are for the gateway, not for
models."""
_OF_A_CONNECTION = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_WINDOW_BITS = {b"gzip": zlib.MAX_WBITS | 16, b"deflate": zlib.MAX_WBITS}


class GrpcStatus(IntEnum):
    """Status codes of gRPC; those of `grpc.StatusCode`, as the numbers that are sent."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


MessageFrame = bytes | memoryview
"""A length-prefixed message, prefix included."""

_ROOM_BYTES = 64
"""Spare memory behind a message that came in pieces, as large ones do: a field can be appended without a copy."""


@dataclass(frozen=True, slots=True, eq=False)
class GrpcHead:
    """The request head of a call.

    Equal heads are mostly one object (`read_head` caches), so equality is identity.
    """

    method: str
    """The full path, `/package.Service/Method`."""
    metadata: Fields = ()
    """The fields that are forwarded to Triton: the caller's metadata, and gRPC's own fields that are end to
    end."""
    timeout_s: float | None = None
    encoding: bytes = b"identity"
    """The compression (`grpc-encoding`) of those messages whose prefix says that they are compressed."""
    authorization: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    forwarded_for: str | None = None
    """The field `x-forwarded-for`; several fields of that name are joined by commas."""
    cache_control: str | None = None
    request_id: str = ""
    """The field `x-request-id`, which is forwarded to Triton too."""
    authority: bytes | None = None
    """The host name that the client called (`:authority`), checked against DNS rebinding."""
    fetch_site: bytes | None = None
    asks_times: bool = False
    """Whether its caller wants to be told where the time goes (`protocols/server_timing`)."""

    def field(self, name: bytes) -> str | None:
        """The metadata of this name; several fields of it are joined by commas."""
        return _text(self.metadata, name)


_HEADS = BoundedCache[Fields, GrpcHead]()


def read_head(fields: Fields) -> GrpcHead:
    """Parse a request's head; heads seen before are looked up. Raises InvalidRequest, NotSupported."""
    head = _HEADS.get(fields)
    if head is None:
        head = _read_head(fields)
        _HEADS.keep(fields, head, size_bytes=size_of(fields))
    return head


def _read_head(came: Fields) -> GrpcHead:
    fields = tuple((name, value.strip(_BLANKS)) for name, value in came)
    by_name = dict(fields)
    if by_name.get(b":method") != b"POST" or not by_name.get(b":path", b"").startswith(b"/"):
        raise InvalidRequest("a gRPC call is a POST to /package.Service/Method")
    if not _IS_GRPC.match(by_name.get(b"content-type", b"")):
        raise NotSupported("this port speaks gRPC; its content-type is application/grpc")
    if not _OF_A_CONNECTION.isdisjoint(by_name):  # malformed by RFC 9113, 8.2.2
        raise InvalidRequest("a header field of HTTP/1.1 connections in an HTTP/2 request")
    metadata = tuple(field for field in fields if not field[0].startswith(b":") and field[0] not in _NOT_FORWARDED)
    if not all(_NAME.fullmatch(name) and _VALUE.fullmatch(value) for name, value in metadata):
        raise InvalidRequest("a header field with characters that gRPC's metadata does not have")
    return GrpcHead(
        by_name[b":path"].decode("latin-1"),
        metadata,
        _read_timeout(by_name.get(b"grpc-timeout")),
        by_name.get(b"grpc-encoding", b"identity"),
        _text(fields, _AUTHORIZATION),
        _text(fields, _API_KEY),
        _text(fields, _FORWARDED_FOR),
        _text(fields, b"cache-control"),
        _text(fields, b"x-request-id") or "",
        by_name.get(b":authority", by_name.get(b"host")),
        by_name.get(b"sec-fetch-site"),
        by_name.get(_ASKS_TIMES) == b"1",
    )


def _text(fields: Fields, name: bytes) -> str | None:
    values = [value for each, value in fields if each == name]
    return b", ".join(values).decode("latin-1") if values else None


def _read_timeout(value: bytes | None) -> float | None:
    if value is None:
        return None
    match = _TIMEOUT.fullmatch(value)
    if match is None:
        raise InvalidRequest(f"grpc-timeout must be up to eight digits and one of H M S m u n, got {value[:20].decode('latin-1')!r}")
    return int(match.group(1)) * _UNIT_S[match.group(2)]


def timeout_value(timeout_s: float) -> bytes:
    """Format a remaining time as `grpc-timeout`: milliseconds, rounded up, eight digits at most."""
    # Never 0, which would be a deadline that is over before the call has arrived.
    return b"%dm" % min(max(1, -int(-timeout_s * 1000 // 1)), 99_999_999)


def frame_prefix(size_bytes: int) -> bytes:
    """The prefix of an uncompressed message of this size."""
    return b"\0" + size_bytes.to_bytes(4, "big")


def append_in_place(frame: MessageFrame, data: bytes) -> MessageFrame | None:
    """Append to an uncompressed message in the memory that it is in, and return its frame; None where there is no room behind it,
    as behind small ones. The frame as it was may not be used any more."""
    whole = frame.obj if isinstance(frame, memoryview) and not is_compressed(frame) else None
    size = len(frame) + len(data)
    if not isinstance(whole, bytearray) or len(whole) != len(frame) + _ROOM_BYTES or len(data) > _ROOM_BYTES:
        return None
    view = memoryview(whole)
    view[len(frame) : size], view[:PREFIX_BYTES] = data, frame_prefix(size - PREFIX_BYTES)
    return view[:size]


def frame_message(message: bytes) -> bytes:
    """Prefix an uncompressed message."""
    return frame_prefix(len(message)) + message


def is_compressed(frame: MessageFrame) -> bool:
    return frame[0] != 0


def message_pieces(frame: MessageFrame, encoding: bytes, bound: InflateBound) -> Iterator[bytes]:
    """Decompress the message in a frame piece by piece.

    Raises as `inflated_pieces` does, and NotSupported.
    """
    bits = _WINDOW_BITS.get(encoding)
    if bits is None:
        raise NotSupported(f"grpc-encoding {encoding[:20].decode('latin-1')!r} is not supported; gzip, deflate and identity are")
    return inflated_pieces(memoryview(frame)[PREFIX_BYTES:], bits, encoding.decode(), bound)


def message_in(frame: MessageFrame, encoding: bytes, bound: InflateBound) -> bytes | memoryview:
    """The message in a frame, decompressed within `bound`.

    Raises InvalidRequest, NotSupported, PayloadTooLarge.
    """
    if not is_compressed(frame):
        return memoryview(frame)[PREFIX_BYTES:]
    return b"".join(message_pieces(frame, encoding, bound))


class MessageReader:
    """Incremental splitter of a stream's data into length-prefixed messages, a bounded number at a time."""

    __slots__ = ("_backlog", "_max_bytes", "_of", "_partial", "_prefix", "partial_bytes")

    def __init__(self, max_bytes: int, *, of: str = " (TIDEGATE_MAX_BODY_BYTES)") -> None:
        """`of` says what the limit is of, in the error of a larger message."""
        self._max_bytes, self._of = max_bytes, of
        self._prefix = b""
        self._partial = bytearray()
        self._backlog: deque[bytes | memoryview] | None = None
        self.partial_bytes = 0
        """Final size of the frame that is incomplete; 0 if none is, or its prefix is not complete yet."""

    @property
    def is_between_messages(self) -> bool:
        return not self._partial and not self._prefix

    @property
    def has_backlog(self) -> bool:
        """Whether `take` has data left to split."""
        return bool(self._backlog)

    def feed(self, data: bytes | memoryview, most: int = sys.maxsize) -> list[MessageFrame]:
        """Add data and return at most `most` complete frames; `take` returns further ones.

        Raises:
            PayloadTooLarge: a prefix announces a message beyond the limit, of which nothing is stored.
        """
        if self._backlog:
            self._backlog.append(data)
            return self.split_more(most)
        if not self._partial and not self._prefix and len(data) >= PREFIX_BYTES and PREFIX_BYTES + self._length(data) == len(data):
            return [bytes(data)]  # a whole message alone, as nearly all come
        frames: list[MessageFrame] = []
        self._split(data, frames, most)
        return frames

    def split_more(self, most: int) -> list[MessageFrame]:
        """Return at most `most` further frames from data that was added before. Raises as `feed` does."""
        frames: list[MessageFrame] = []
        while self._backlog and len(frames) < most:
            self._split(self._backlog.popleft(), frames, most)
        return frames

    def _split(self, data: bytes | memoryview, frames: list[MessageFrame], most: int) -> None:
        if self._partial:
            data = self._fill(data, frames)
        if self._prefix:
            data, self._prefix = self._prefix + bytes(data), b""
        while len(data) >= PREFIX_BYTES:
            if len(frames) >= most:
                self._keep(data)  # unsplit, for `take`: one HTTP/2 frame may hold thousands of messages
                return
            size = PREFIX_BYTES + self._length(data)
            if size > len(data):
                self.partial_bytes = size
                self._partial += data
                return
            frames.append(bytes(data[:size]))
            data = memoryview(data)[size:]  # a view: with thousands of small frames, copies of the rest would be quadratic
        self._prefix = bytes(data)

    def _keep(self, data: bytes | memoryview) -> None:
        if self._backlog is None:
            self._backlog = deque()
        self._backlog.appendleft(data)

    def _fill(self, data: bytes | memoryview, frames: list[MessageFrame]) -> bytes | memoryview:
        part = data[: self.partial_bytes - len(self._partial)]
        self._partial += part  # grows with what arrives: five bytes can announce a message of the largest size allowed
        if len(self._partial) == self.partial_bytes:
            self._partial += bytes(_ROOM_BYTES)
            frames.append(memoryview(self._partial)[: self.partial_bytes])
            self._partial, self.partial_bytes = bytearray(), 0
        return data[len(part) :]

    def _length(self, data: bytes | memoryview) -> int:
        length = int.from_bytes(data[1:PREFIX_BYTES], "big")
        if length > self._max_bytes:
            raise PayloadTooLarge(f"a message of {length} bytes exceeds the limit of {self._max_bytes}{self._of}")
        return length


def status_fields(code: int, details: str) -> Fields:
    """Format the trailers that end a call."""
    status = ((b"grpc-status", b"%d" % code),)
    return (*status, (b"grpc-message", quote_from_bytes(details.encode(), safe=_PRINTABLE).encode())) if details else status


HEAD: Fields = ((b":status", b"200"), (b"content-type", _CONTENT_TYPE))


@dataclass(slots=True)
class GrpcAnswer:
    """The answer to a unary call: a message, or a status other than OK (0).

    Never modified, but not a frozen dataclass, which takes longer to make.
    """

    code: int
    headers: Fields
    """Empty for a trailers-only answer."""
    body: tuple[bytes | memoryview, ...]
    """The message's frame, in the pieces in which it arrived."""
    trailers: Fields
    loss: SendFailure | None = None
    """Set where the server gave no answer and this status was made up here for that reason."""

    @property
    def encoding(self) -> bytes:
        """The compression of the message, if its prefix says that it is compressed."""
        return dict(self.headers).get(b"grpc-encoding", b"identity")

    @property
    def details(self) -> str:
        """The status message, percent-decoded."""
        return unquote_to_bytes(dict(self.trailers).get(b"grpc-message", b"")).decode(errors="replace")

    @property
    def message(self) -> bytes:
        """The message without its prefix."""
        return b"".join(self.body)[PREFIX_BYTES:]

    def ending(self) -> GrpcAnswer:
        """Return this status as trailers only, for a call whose response head has been sent already."""
        trailers = tuple(field for field in self.trailers if not field[0].startswith(b":") and field[0] != b"content-type")
        return GrpcAnswer(self.code, (), (), trailers)


def message_answer(message: bytes) -> GrpcAnswer:
    """A successful answer from the gateway itself."""
    return GrpcAnswer(0, HEAD, (frame_message(message),), status_fields(0, ""))


def with_trailer(answer: GrpcAnswer, name: str, value: str) -> GrpcAnswer:
    """Return an answer with one more trailer."""
    return GrpcAnswer(answer.code, answer.headers, answer.body, (*answer.trailers, (name.encode(), value.encode())), answer.loss)


def status_answer(code: int, details: str, more: Fields = (), *, loss: SendFailure | None = None) -> GrpcAnswer:
    """A failure from the gateway itself, with `more` as trailing metadata."""
    return GrpcAnswer(code, (), (), (*HEAD, *status_fields(code, details), *more), loss)


def answer_of(headers: Fields, body: tuple[bytes | memoryview, ...], trailers: Fields) -> GrpcAnswer:
    """A server's answer; without a valid `grpc-status` it counts as UNKNOWN, as in gRPC's own clients."""
    code = dict(trailers).get(b"grpc-status", b"")
    return GrpcAnswer(int(code) if code.isdigit() and len(code) < 4 else GrpcStatus.UNKNOWN, headers, body, trailers)
