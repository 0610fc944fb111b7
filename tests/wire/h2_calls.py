"""Calls to the gRPC frontend by the `h2` library, or as frames written by hand."""

from __future__ import annotations

from contextlib import suppress

import h2.errors
import h2.events
import h2.settings

from control_plane.protocols.grpc import frame_message
from control_plane.protocols.http2 import frames
from control_plane.protocols.http2.headers import NO_TABLE, HeaderDecoder, KnownBlocks, encode_fields
from tests.h2_peer import H2Peer
from tests.unit.protocols.http2.http2_ends import Seen, frame
from tests.wire.grpc_frontend import INFER, Bench, infer_message

HEAD = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", INFER),
    (":authority", "a"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]
RAW_HEAD = tuple((name.encode(), value.encode()) for name, value in HEAD)
OPENING = frames.PREFACE + frames.settings_frame({}) + frames.SETTINGS_ACK


def first_headers(stream_id: int, fields: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """As `headers`, for a connection's first head, which begins with a table size update to 0."""
    return frame(frames.HEADERS, frames.END_HEADERS, stream_id, NO_TABLE + encode_fields(fields))


async def begin(peer: H2Peer, stream_id: int = 1, *, ends: bool = False, head: list[tuple[str, str]] = HEAD) -> None:
    peer.state.send_headers(stream_id, head, end_stream=ends)
    await peer.flush()


async def ask(peer: H2Peer, stream_id: int = 1, message: bytes | None = None) -> bytes:
    """Make one call; returns the message of its answer."""
    await begin(peer, stream_id)
    peer.state.send_data(stream_id, frame_message(infer_message() if message is None else message), end_stream=True)
    await peer.flush()
    return await answered(peer, stream_id)


async def answered(peer: H2Peer, stream_id: int = 1) -> bytes:
    got = b""
    while True:
        if any(isinstance(each, h2.events.TrailersReceived) and each.stream_id == stream_id for each in peer.events):
            trailers = await peer.wait_for(h2.events.TrailersReceived, stream_id=stream_id)
            assert dict(trailers.headers)["grpc-status"] == "0"
            while any(isinstance(each, h2.events.DataReceived) and each.stream_id == stream_id for each in peer.events):
                got += (await peer.wait_for(h2.events.DataReceived, stream_id=stream_id)).data
            return got[5:]
        await peer.read()


async def status(peer: H2Peer, stream_id: int = 1) -> str:
    """The status of a refused call, whose answer is trailers only."""
    refused = await peer.wait_for(h2.events.ResponseReceived, stream_id=stream_id)
    return str(dict(refused.headers)["grpc-status"])


async def ended(peer: H2Peer, stream_id: int) -> str:
    """The status of a call, whether it was answered or refused."""
    while True:
        for each in peer.events:
            if isinstance(each, h2.events.TrailersReceived | h2.events.ResponseReceived) and each.stream_id == stream_id:
                found = dict(each.headers).get("grpc-status")
                if found is not None:
                    return str(found)
        await peer.read()


async def farewell(peer: H2Peer) -> list[Seen]:
    """Frames until the server closes, for a client that acknowledges pings; h2 itself accepts nothing after a
    GOAWAY."""
    reader, seen = frames.FrameReader(1 << 24), list[Seen]()
    while received := await peer.reader.read(1 << 16):
        for kind, flags, stream_id, payload in reader.feed(received):
            seen.append(Seen(kind, flags, stream_id, bytes(payload)))
            if kind == frames.PING:
                await peer.send_raw(frame(frames.PING, frames.ACK, 0, bytes(payload)))
    return seen


def goaways(seen: list[Seen]) -> list[tuple[int, int]]:
    """The last stream id and the code of each GOAWAY."""
    found = [each.payload for each in seen if each.kind == frames.GOAWAY]
    return [(int.from_bytes(payload[:4], "big"), int.from_bytes(payload[4:8], "big")) for payload in found]


async def closed(peer: H2Peer) -> bool:
    """Read until the connection ends."""
    with suppress(ConnectionError):
        await peer.reader.read()
    return True


async def goodbye(it: Bench, sent: bytes) -> int:
    """The code of the GOAWAY that the server answers `sent` with before it closes."""
    peer = await it.connect()
    await peer.send_raw(sent)
    received = await peer.reader.read()
    last = frames.FrameReader(1 << 24).feed(received)[-1]
    assert last[0] == frames.GOAWAY, received
    return int.from_bytes(last[3][4:8], "big")


Field = tuple[bytes, bytes]


class WholeCaller:
    """Client that sends the two frames of a call at once, and reads the frames of its answer."""

    def __init__(self, peer: H2Peer) -> None:
        self.peer = peer
        self.reader = frames.FrameReader(1 << 24)
        self.decoder = HeaderDecoder(KnownBlocks(), max_bytes=1 << 14)
        self.next_stream = 1

    async def call(self, block: bytes, data: bytes) -> list[list[Field] | bytes]:
        """Make a call with this header block; returns the header fields and the data of its answer, frame by frame."""
        stream_id, self.next_stream = self.next_stream, self.next_stream + 2
        opening, prefix = (OPENING, NO_TABLE) if stream_id == 1 else (b"", b"")
        head = frame(frames.HEADERS, frames.END_HEADERS, stream_id, prefix + block)
        await self.peer.send_raw(opening + head + frame(frames.DATA, frames.END_STREAM, stream_id, data))
        seen: list[list[Field] | bytes] = []
        while True:
            received = await self.peer.reader.read(1 << 16)
            assert received, "the frontend closed"
            for kind, flags, of_stream, payload in self.reader.feed(received):
                assert of_stream in (0, stream_id)
                if of_stream:
                    seen.append(list(self.decoder.decode(bytes(payload))) if kind == frames.HEADERS else bytes(payload))
                if of_stream and flags & frames.END_STREAM:
                    return seen
