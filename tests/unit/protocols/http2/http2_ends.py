"""One end of an HTTP/2 connection for tests, with a recording listener; and frames written by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.connection import Http2Connection
from control_plane.protocols.http2.frames import Setting
from control_plane.protocols.http2.headers import NO_TABLE, Fields, KnownBlocks, encode_fields
from control_plane.protocols.http2.limits import Http2Limits
from control_plane.protocols.http2.stream import Stream, WholeAnswer, WholeCall

HEAD: Fields = ((b":method", b"POST"), (b":path", b"/s/m"))
ANSWER: Fields = ((b":status", b"200"),)
LIMITS = Http2Limits(
    max_streams=3, stream_window_bytes=1 << 16, connection_window_bytes=1 << 18, max_frame_bytes=1 << 14, max_header_bytes=2048
)


@dataclass
class Listener:
    stream: Stream | None = None
    fields: list[Fields] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    has_ended: bool = False
    was_reset: bool = False
    drained: int = 0

    def on_headers(self, fields: Fields, *, ends: bool) -> None:
        self.fields.append(fields)
        self.has_ended |= ends

    def on_data(self, data: bytes | memoryview, *, ends: bool) -> None:
        self.data += data
        self.has_ended |= ends

    def on_reset(self) -> None:
        self.was_reset = True

    def on_drained(self) -> None:
        self.drained += 1


class Seen(NamedTuple):
    """A frame that an end has written, parsed."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes


@dataclass
class End:
    """One end of a connection; `calls` are its streams' listeners in the order in which the streams were
    opened."""

    connection: Http2Connection
    calls: list[Listener] = field(default_factory=list)

    @staticmethod
    def server(
        limits: Http2Limits = LIMITS,
        *,
        answer_verbatim: Callable[[WholeCall], WholeAnswer | None] | None = None,
        refuse_head: Callable[[bytes], bytes | None] | None = None,
    ) -> End:
        """An end that has received the peer's preface and settings, and whose own have been read."""
        end = End(None)  # type: ignore[arg-type]

        def accept(stream: Stream) -> Listener:
            end.calls.append(Listener(stream))
            return end.calls[-1]

        end.connection = Http2Connection(KnownBlocks(), limits, accept=accept, answer_verbatim=answer_verbatim, refuse_head=refuse_head)
        end.connection.start()
        end.take()
        end.connection.receive(h2.PREFACE)
        return end

    def take_first(self, body: bytes, *, acknowledged: bool = True, no_table: bool = True, answered: bool = True) -> None:
        """Have a server receive a first call, on stream 1, by the ordinary path; its frames and its listener are forgotten."""
        self.connection.receive(h2.settings_frame({}) + (h2.SETTINGS_ACK if acknowledged else b""))
        head = (NO_TABLE if no_table else b"") + encode_fields(HEAD)
        self.connection.receive(frame(h2.HEADERS, h2.END_HEADERS, 1, head) + data(1, body, ends=True))
        stream = self.calls[0].stream
        assert stream is not None
        if answered:
            self.connection.consumed(stream, len(body))
            self.connection.send_headers(stream, encode_fields(ANSWER), ends=True)
        self.take()
        self.calls.clear()

    @staticmethod
    def client(limits: Http2Limits = LIMITS) -> End:
        end = End(Http2Connection(KnownBlocks(), limits))
        end.connection.start()
        end.take()
        return end

    def open(self, *, ends: bool = False) -> Listener:
        """Open a stream and send the head of a call."""
        listener = Listener()
        listener.stream = self.connection.open(listener)
        self.calls.append(listener)
        self.connection.send_headers(listener.stream, encode_fields(HEAD), ends=ends)
        return listener

    def take(self) -> bytes:
        """Take the bytes in its output."""
        data = b"".join(self.connection.output)
        self.connection.output.clear()
        return data

    def frames(self) -> list[Seen]:
        return [Seen(kind, flags, stream, bytes(payload)) for kind, flags, stream, payload in h2.FrameReader(1 << 24).feed(self.take())]

    def kinds(self) -> list[int]:
        return [each.kind for each in self.frames()]


def exchange(one: End, other: End) -> None:
    """Carry bytes both ways until neither end has output."""
    while one.connection.output or other.connection.output:
        other.connection.receive(one.take())
        one.connection.receive(other.take())


def headers(stream_id: int, fields: Fields = HEAD, *, flags: int = h2.END_HEADERS, ends: bool = False) -> bytes:
    return frame(h2.HEADERS, flags | (h2.END_STREAM if ends else 0), stream_id, encode_fields(fields))


def data(stream_id: int, payload: bytes, *, ends: bool = False) -> bytes:
    return frame(h2.DATA, h2.END_STREAM if ends else 0, stream_id, payload)


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return h2.frame_head(kind, flags, stream_id, len(payload)) + payload


def settings_of(**values: int) -> bytes:
    return h2.settings_frame({Setting[name]: value for name, value in values.items()})
