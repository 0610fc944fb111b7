"""HTTP/2 connections, both ends: any bytes are events or one protocol error, however they arrive; windows stay within bounds."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from tests.fuzz.harness import fuzz, instrumented, slices

with instrumented():
    from control_plane.protocols.http2.connection import Http2Connection
    from control_plane.protocols.http2.frames import MAX_WINDOW_BYTES, PREFACE, Http2Error
    from control_plane.protocols.http2.headers import Fields, KnownBlocks, encode_fields
    from control_plane.protocols.http2.limits import Http2Limits
    from control_plane.protocols.http2.stream import Stream

LIMITS = Http2Limits(
    max_streams=3, stream_window_bytes=256, connection_window_bytes=1 << 16, max_frame_bytes=1 << 14, max_header_bytes=2048
)
ANSWER = encode_fields(((b":status", b"200"),))


class Listener:
    """Answers each stream that ends, and gives room for half of what comes."""

    def __init__(self, end: End, stream: Stream) -> None:
        self.end = end
        self.stream = stream

    def on_headers(self, fields: Fields, *, ends: bool) -> None:
        self.end.seen.append((self.stream.id, fields, ends))
        self._answer(ends)

    def on_data(self, data: bytes, *, ends: bool) -> None:
        self.end.seen.append((self.stream.id, data, ends))
        self.end.connection.consumed(self.stream, len(data) // 2)
        self._answer(ends)

    def on_reset(self) -> None:
        self.end.seen.append((self.stream.id, "reset"))

    def on_drained(self) -> None:
        self.end.seen.append((self.stream.id, "drained"))

    def _answer(self, ends: bool) -> None:
        if ends and not self.stream.local_is_closed:
            self.end.connection.send_headers(self.stream, ANSWER)
            self.end.connection.send_data(self.stream, bytes(20_000), ends=True)


class End:
    """One end of a connection and what was seen at it."""

    def __init__(self, *, is_server: bool) -> None:
        self.seen: list[tuple[object, ...]] = []
        self.connection = Http2Connection(KnownBlocks(), LIMITS, accept=(lambda stream: Listener(self, stream)) if is_server else None)
        self.connection.start()
        if not is_server:
            stream = self.connection.open(listener := Listener.__new__(Listener))
            listener.__init__(self, stream)  # type: ignore[misc]
            self.connection.send_headers(stream, ANSWER, ends=True)

    def take(self, pieces: Iterable[bytes], *, most: int = sys.maxsize) -> list[tuple[object, ...]]:
        """What is seen of the pieces, read so many frames at a time."""
        try:
            for piece in pieces:
                has_backlog = self.connection.receive(piece, most)
                while has_backlog:
                    self._check_bounds()
                    has_backlog = self.connection.go_on(most)
                self._check_bounds()
        except Http2Error as exc:
            str(exc).encode()
            self.seen.append(("error", exc.http2_code))
            self.connection.leave(exc.http2_code, str(exc))
        self.connection.end()
        assert not self.connection.streams
        return self.seen

    def _check_bounds(self) -> None:
        streams = self.connection.streams.values()
        assert len(streams) <= LIMITS.max_streams
        assert all(stream.held_bytes <= LIMITS.stream_window_bytes for stream in streams)
        assert all(stream.send_window <= MAX_WINDOW_BYTES for stream in streams)


def check(data: bytes) -> None:
    """The first byte says which end receives the rest."""
    mark, rest = (data[0], data[1:]) if data else (0, b"")
    is_server = mark % 4 != 0
    if mark % 4 > 1:
        rest = PREFACE + rest
    whole, sliced = End(is_server=is_server).take([rest]), End(is_server=is_server).take(slices(rest))
    assert (whole == sliced) or comes_to_an_error_earlier(whole, sliced)
    stepped = End(is_server=is_server).take([rest], most=1)
    assert (whole == stepped) or comes_to_an_error_earlier(whole, stepped)


def comes_to_an_error_earlier(whole: list[tuple[object, ...]], sliced: list[tuple[object, ...]]) -> bool:
    """A frame that is too long is refused before those that came together with it and before it."""
    happened = [[each for each in seen if "error" not in each and "reset" not in each] for seen in (whole, sliced)]
    both_end = all(any(each[0] == "error" for each in seen) for seen in (whole, sliced))
    return both_end and happened[0] == happened[1][: len(happened[0])]


if __name__ == "__main__":
    fuzz(check)
