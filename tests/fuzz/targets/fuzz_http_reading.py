"""The HTTP frontend's reader: never raises, slices change nothing, and what goes on to Triton is exactly one request to h11 too."""

from __future__ import annotations

from collections.abc import Iterable

import h11

from tests.fuzz.harness import fuzz, instrumented, slices

with instrumented():
    from control_plane.core.errors import ControlPlaneError
    from control_plane.frontends.http.limits import HttpLimits, StreamedBody
    from control_plane.frontends.http.requests.body_stream import BodyStream
    from control_plane.frontends.http.requests.reader import RequestReader
    from control_plane.protocols.http1 import HttpRequest, upstream_pieces

LIMITS = HttpLimits(max_body_bytes=3000, max_header_bytes=16 << 10, max_connections=1, max_upload_bytes=3000)


def streamed(request: HttpRequest) -> StreamedBody | None:
    return StreamedBody.UPLOAD if request.target == b"/stream" else None


class Sink:
    def __init__(self) -> None:
        self.requests: list[HttpRequest] = []
        self.streamed: list[HttpRequest] = []
        self.seen: list[object] = []

    verbatim_entries = ("any",)

    def answer_verbatim(self, head: bytes, body: bytes) -> bool:
        return False

    def accept(self, request: HttpRequest, *, keep_alive: bool) -> None:
        if request.stream is not None:
            self.streamed.append(request)
            return
        self.take_streamed()
        self.requests.append(request)
        self.seen.append((request.method, request.target, request.headers, bytes(request.body), keep_alive))

    def refuse(self, error: ControlPlaneError) -> None:
        self.take_streamed()
        str(error).encode()
        self.seen.append("refused")

    def reserve(self, size_bytes: int) -> None:
        assert size_bytes > 0

    def read_on(self) -> None:
        raise AssertionError("no buffer is ever full here")

    def take_streamed(self) -> None:
        """Note a streamed request once its body is whole, or nothing more can come."""
        for request in self.streamed:
            assert isinstance(request.stream, BodyStream)
            self.seen.append((request.target, request.headers, bytes(request.stream.take()), request.stream.is_whole))
        self.streamed.clear()


def check(data: bytes) -> None:
    whole, sliced = read([data]), read(slices(data))
    assert whole.seen == sliced.seen
    assert whole.seen.count("refused") <= 1
    assert "refused" not in whole.seen[:-1], "a request after a refusal"
    for request in whole.requests:
        assert_one_request(request)


def read(pieces: Iterable[bytes]) -> Sink:
    sink = Sink()
    reader = RequestReader(sink, LIMITS, lambda request: None, peer_is_local=True, streams=streamed)
    for piece in pieces:
        has_backlog = reader.feed(piece)
        while has_backlog:
            has_backlog = reader.read_backlog()
    sink.take_streamed()
    return sink


def assert_one_request(request: HttpRequest) -> None:
    """Another parser finds in what goes on the same one request, or refuses it."""
    server = h11.Connection(h11.SERVER)
    server.receive_data(b"".join(bytes(piece) for piece in upstream_pieces(request, b"triton")))
    body = b""
    try:
        head = server.next_event()
        while isinstance(event := server.next_event(), h11.Data):
            body += event.data
    except h11.RemoteProtocolError:
        return
    assert isinstance(head, h11.Request)
    assert isinstance(event, h11.EndOfMessage)
    assert (head.method, head.target, body) == (request.method, request.target, bytes(request.body))
    assert server.trailing_data == (b"", False), "a second request"


if __name__ == "__main__":
    fuzz(check)
