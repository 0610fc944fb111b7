"""A large result is read from the spool piece by piece, as its caller reads it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from control_plane.core.errors import StoreUnavailable
from control_plane.frontends.jobs.result_stream import begin_result

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n"


@dataclass
class Reader:
    """`jobs/ports.BlobReader` of these pieces; an error is raised in its turn."""

    pieces: list[bytes | StoreUnavailable] = field(default_factory=list)
    is_closed: bool = False

    async def receive(self) -> bytes | None:
        piece = self.pieces.pop(0) if self.pieces else None
        if isinstance(piece, StoreUnavailable):
            raise piece
        return piece

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("pieces", "left"),
    [
        pytest.param([HEAD + b"abc", b"de", b"fg"], 2, id="head-and-body"),
        pytest.param([HEAD, b"abcdefg"], 1, id="head-alone"),
        pytest.param([HEAD[:9], HEAD[9:] + b"a", b"bcdefg"], 1, id="head-in-pieces"),
    ],
)
async def test_no_more_is_read_than_the_head_needs_until_the_caller_reads(pieces: list[bytes | StoreUnavailable], left: int) -> None:
    reader = Reader(pieces)
    stream = (await begin_result(reader, 200, len(HEAD))).with_header(b"Preference-Applied: wait=1")
    assert (stream.status, stream.head) == (200, HEAD[:-2] + b"Preference-Applied: wait=1\r\n\r\n")
    assert len(reader.pieces) == left
    body = b""
    while (piece := await stream.receive()) is not None:
        body += piece
    assert body == b"abcdefg"
    stream.close()
    assert reader.is_closed


async def test_a_spool_that_fails_at_the_head_is_closed() -> None:
    reader = Reader([HEAD[:9], StoreUnavailable("away")])
    with pytest.raises(StoreUnavailable):
        await begin_result(reader, 200, len(HEAD))
    assert reader.is_closed
