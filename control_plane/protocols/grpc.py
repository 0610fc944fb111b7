"""gRPC over HTTP/2 as values: the head of a call, length-prefixed messages, statuses.

Source: gRPC's "PROTOCOL-HTTP2". Used by the gRPC door and by the adapter that calls Triton; heads and messages travel
through as the bytes they came as.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import quote_from_bytes, unquote_to_bytes

from control_plane.core.bounded_cache import BoundedCache
from control_plane.core.errors import InvalidRequest, NotSupported, PayloadTooLarge
from control_plane.core.infer_call import Loss
from control_plane.protocols.http2.headers import Fields, size_of
from control_plane.protocols.inflating import inflated_pieces
from control_plane.protocols.kserve.body_limits import InflateBound

PREFIX_BYTES = 5
"""Of every message: a byte that says whether it is compressed, and its length in four."""

_CONTENT_TYPE = b"application/grpc"
_IS_GRPC = re.compile(rb"application/grpc(?:[+;]|\Z)")
_NAME = re.compile(rb"[0-9a-z_.-]+")
_VALUE = re.compile(rb"[\x20-\x7e]*")
"""Of metadata. It goes on over a connection that other callers share; the peer may end that for one bad field."""
_BLANKS = b" \t"
"""Around a value; they are no part of it (RFC 9110, 5.5)."""
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_UNIT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_PRINTABLE = bytes(range(0x20, 0x25)) + bytes(range(0x26, 0x7F))
_AUTHORIZATION, _API_KEY, _FORWARDED_FOR = b"authorization", b"x-api-key", b"x-forwarded-for"
_NOT_FORWARDED = frozenset((b"te", b"grpc-timeout", _AUTHORIZATION, _API_KEY))
"""Credentials are for the gateway, not for models."""
_OF_A_CONNECTION = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_WINDOW_BITS = {b"gzip": zlib.MAX_WBITS | 16, b"deflate": zlib.MAX_WBITS}


MessageFrame = bytes | memoryview
"""A message with its prefix."""


@dataclass(frozen=True, slots=True, eq=False)
class GrpcHead:
    """What the head of a call says. Equal heads of one client are mostly one object, so it is compared by identity."""

    method: str
    """The full path, `/package.Service/Method`."""
    metadata: Fields = ()
    """What goes on to Triton: the caller's metadata and gRPC's own fields, without those of the caller's connection."""
    timeout_s: float | None = None
    encoding: bytes = b"identity"
    """How messages that say they are compressed are compressed."""
    authorization: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    forwarded_for: str | None = None
    """What it says of its caller; several fields of a name joined by commas."""
    cache_control: str | None = None
    request_id: str = ""
    """Its field `x-request-id`, which Triton is sent as well."""
    authority: bytes | None = None
    """The name by which this server was asked."""
    fetch_site: bytes | None = None


_HEADS = BoundedCache[Fields, GrpcHead]()


def read_head(fields: Fields) -> GrpcHead:
    """Read a request's head. Raises InvalidRequest, NotSupported."""
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
    if not _OF_A_CONNECTION.isdisjoint(by_name):
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
    """`grpc-timeout` for a remaining time; in milliseconds, rounded up, eight digits at most."""
    return b"%dm" % min(max(1, -int(-timeout_s * 1000 // 1)), 99_999_999)


def frame_message(message: bytes) -> bytes:
    """A message with its prefix, not compressed."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def is_compressed(frame: MessageFrame) -> bool:
    return frame[0] != 0


def message_pieces(frame: MessageFrame, encoding: bytes, bound: InflateBound) -> Iterator[bytes]:
    """The message within a compressed frame, piece by piece; as `inflated_pieces`. Raises NotSupported, too."""
    bits = _WINDOW_BITS.get(encoding)
    if bits is None:
        raise NotSupported(f"grpc-encoding {encoding[:20].decode('latin-1')!r} is not supported; gzip, deflate and identity are")
    return inflated_pieces(memoryview(frame)[PREFIX_BYTES:], bits, encoding.decode(), bound)


def message_in(frame: MessageFrame, encoding: bytes, bound: InflateBound) -> bytes | memoryview:
    """The message within its frame, decompressed within `bound`. Raises InvalidRequest, NotSupported, PayloadTooLarge."""
    if not is_compressed(frame):
        return memoryview(frame)[PREFIX_BYTES:]
    return b"".join(message_pieces(frame, encoding, bound))


class MessageReader:
    """Cuts the data of a stream into length-prefixed messages, each with its prefix; so many at a time as it is asked for."""

    __slots__ = ("_max_bytes", "_partial", "_prefix", "_uncut", "partial_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._prefix = b""
        self._partial = bytearray()
        self._uncut: deque[bytes | memoryview] | None = None
        self.partial_bytes = 0
        """Size that the frame will have which has begun; 0 when that is not known yet, or none has."""

    @property
    def is_between_messages(self) -> bool:
        return not self._partial and not self._prefix

    @property
    def is_behind(self) -> bool:
        """Whether there is more to take."""
        return bool(self._uncut)

    def feed(self, data: bytes | memoryview, most: int = sys.maxsize) -> list[MessageFrame]:
        """So many of the frames that are whole now; `take` gives the others.

        Raises:
            PayloadTooLarge: on the prefix of one that is too long.
        """
        if self._uncut:
            self._uncut.append(data)
            return self.take(most)
        frames: list[MessageFrame] = []
        self._cut(data, frames, most)
        return frames

    def take(self, most: int) -> list[MessageFrame]:
        """As `feed`, of what came before."""
        frames: list[MessageFrame] = []
        while self._uncut and len(frames) < most:
            self._cut(self._uncut.popleft(), frames, most)
        return frames

    def _cut(self, data: bytes | memoryview, frames: list[MessageFrame], most: int) -> None:
        if self._partial:
            data = self._fill(data, frames)
        if self._prefix:
            data, self._prefix = self._prefix + bytes(data), b""
        while len(data) >= PREFIX_BYTES:
            if len(frames) >= most:
                self._keep(data)
                return
            size = PREFIX_BYTES + self._length(data)
            if size > len(data):
                self.partial_bytes = size
                self._partial += data
                return
            frames.append(bytes(data[:size]))
            data = memoryview(data)[size:]  # not a copy: thousands of small ones may follow
        self._prefix = bytes(data)

    def _keep(self, data: bytes | memoryview) -> None:
        if self._uncut is None:
            self._uncut = deque()
        self._uncut.appendleft(data)

    def _fill(self, data: bytes | memoryview, frames: list[MessageFrame]) -> bytes | memoryview:
        part = data[: self.partial_bytes - len(self._partial)]
        self._partial += part  # memory for what has come only: five bytes may announce all that is allowed
        if len(self._partial) == self.partial_bytes:
            frames.append(memoryview(self._partial))
            self._partial, self.partial_bytes = bytearray(), 0
        return data[len(part) :]

    def _length(self, data: bytes | memoryview) -> int:
        length = int.from_bytes(data[1:PREFIX_BYTES], "big")
        if length > self._max_bytes:
            raise PayloadTooLarge(f"a message of {length} bytes exceeds the limit of {self._max_bytes} (TIDEGATE_MAX_BODY_BYTES)")
        return length


def status_fields(code: int, details: str) -> Fields:
    """The trailers that end a call."""
    status = ((b"grpc-status", b"%d" % code),)
    return (*status, (b"grpc-message", quote_from_bytes(details.encode(), safe=_PRINTABLE).encode())) if details else status


HEAD: Fields = ((b":status", b"200"), (b"content-type", _CONTENT_TYPE))


@dataclass(frozen=True, slots=True)
class GrpcAnswer:
    """What a unary call is answered: a message, or a status other than OK (0)."""

    code: int
    headers: Fields
    """Empty where the trailers are all there is."""
    body: tuple[bytes | memoryview, ...]
    """The message's frame, in the pieces it came in."""
    trailers: Fields
    loss: Loss | None = None
    """Set where it is no answer of the server's, but says that there is none."""

    @property
    def encoding(self) -> bytes:
        """How the message is compressed, if it says that it is."""
        return dict(self.headers).get(b"grpc-encoding", b"identity")

    @property
    def details(self) -> str:
        """The status' text."""
        return unquote_to_bytes(dict(self.trailers).get(b"grpc-message", b"")).decode(errors="replace")

    @property
    def message(self) -> bytes:
        """The message without its prefix."""
        return b"".join(self.body)[PREFIX_BYTES:]

    def ending(self) -> GrpcAnswer:
        """The same status for a call whose head has been sent."""
        trailers = tuple(field for field in self.trailers if not field[0].startswith(b":") and field[0] != b"content-type")
        return GrpcAnswer(self.code, (), (), trailers)


def message_answer(message: bytes) -> GrpcAnswer:
    """A successful answer of our own."""
    return GrpcAnswer(0, HEAD, (frame_message(message),), status_fields(0, ""))


def status_answer(code: int, details: str, more: Fields = (), *, loss: Loss | None = None) -> GrpcAnswer:
    """A failure of our own, with `more` as metadata."""
    return GrpcAnswer(code, (), (), (*HEAD, *status_fields(code, details), *more), loss)


def answer_of(headers: Fields, body: tuple[bytes | memoryview, ...], trailers: Fields) -> GrpcAnswer:
    """An answer as it came from a server; one without a status counts as UNKNOWN (2), as gRPC's clients take it."""
    code = dict(trailers).get(b"grpc-status", b"2")
    return GrpcAnswer(int(code) if code.isdigit() and len(code) < 4 else 2, headers, body, trailers)
