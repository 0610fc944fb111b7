"""Calls of which the head alone has come are refused without a stream; and all conditions that prevent that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.frames import Code, Http2Error
from control_plane.protocols.http2.headers import encode_fields
from tests.unit.protocols.http2.http2_ends import HEAD, LIMITS, End, data, frame, headers

BLOCK = encode_fields(HEAD)
BODY = b"message"
TRAILERS = encode_fields(((b"grpc-status", b"14"),))
ENDS = h2.END_HEADERS | h2.END_STREAM
NO_ERROR = Code.NO_ERROR.to_bytes(4, "big")


@dataclass
class Late:
    """Fake of what refuses every call, or none; records the header blocks that it was asked about."""

    trailers: bytes | None = TRAILERS
    asked: list[bytes] = field(default_factory=list)

    def __call__(self, block: bytes) -> bytes | None:
        self.asked.append(block)
        return self.trailers


def opened(late: Late, **so_far: bool) -> End:
    """A server that has received a first call (`End.take_first`), which was not late."""
    end = End.server(refuse_head=late)
    trailers, late.trailers = late.trailers, None
    end.take_first(BODY, **so_far)
    late.trailers = trailers
    late.asked.clear()
    return end


def test_one_is_refused_and_its_client_told_to_send_no_more() -> None:
    late = Late()
    end = opened(late)
    answered = end.connection.answered
    end.connection.receive(headers(3))
    assert late.asked == [BLOCK]
    assert end.frames() == [(h2.HEADERS, ENDS, 3, TRAILERS), (h2.RST_STREAM, 0, 3, NO_ERROR)]
    assert (end.calls, end.connection.streams) == ([], {})
    assert (end.connection.last_peer_stream_id, end.connection.answered) == (3, answered + 1)


def test_one_that_is_not_refused_takes_the_ordinary_path() -> None:
    late = Late(None)
    end = opened(late)
    end.connection.receive(headers(3) + data(3, BODY, ends=True))
    (call,) = end.calls
    assert call.stream is not None
    assert (late.asked, call.fields, bytes(call.data), call.stream.block) == ([BLOCK], [HEAD], BODY, BLOCK)


def test_what_is_on_its_way_for_them_does_no_harm() -> None:
    """More of it than a connection's frames may be that ask for nothing, and more bytes than its window has."""
    end, body = opened(Late()), bytes(1000)
    for first in range(3, 40_003, 1000):
        end.connection.receive(b"".join(headers(stream_id) for stream_id in range(first, first + 1000, 2)))
        end.connection.receive(b"".join(data(stream_id, body, ends=True) for stream_id in range(first, first + 1000, 2)))
        end.take()
    assert (end.calls, end.connection.last_peer_stream_id) == ([], 40_001)


def test_a_flood_for_streams_that_ended_long_ago_ends_the_connection_all_the_same() -> None:
    end = opened(Late())
    end.connection.receive(headers(3))
    with pytest.raises(Http2Error) as caught:
        end.connection.receive(data(3, b"") * 10_000)
    assert caught.value.http2_code is Code.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(headers(3, ends=True), id="no data"),
        pytest.param(frame(h2.HEADERS, h2.END_HEADERS | h2.PADDED, 3, b"\1" + BLOCK + b"\0"), id="padded"),
        pytest.param(frame(h2.HEADERS, 0, 3, BLOCK[:3]) + frame(h2.CONTINUATION, h2.END_HEADERS, 3, BLOCK[3:]), id="in two frames"),
    ],
)
def test_one_that_is_no_plain_frame_takes_the_ordinary_path(sent: bytes) -> None:
    late = Late()
    end = opened(late)
    end.connection.receive(sent)
    assert (late.asked, [each.fields for each in end.calls]) == ([], [[HEAD]])


def test_trailers_of_an_open_call_are_no_head() -> None:
    late = Late(None)
    end = opened(late)
    end.connection.receive(headers(3) + data(3, BODY))
    late.trailers = TRAILERS
    end.connection.receive(headers(3, ends=True))
    assert (late.asked, end.calls[0].has_ended, end.take()) == ([BLOCK], True, b"")


def test_an_even_stream_is_an_error() -> None:
    late = Late()
    with pytest.raises(Http2Error):
        opened(late).connection.receive(headers(4))
    assert late.asked == []


@pytest.mark.parametrize("stream_id", [3, 5])
def test_a_stream_that_is_not_new(stream_id: int) -> None:
    late = Late()
    end = opened(late)
    end.connection.receive(headers(5))
    end.take()
    end.connection.receive(headers(stream_id))
    assert (len(late.asked), end.take(), end.calls) == (1, b"", [])


def test_a_connection_that_leaves() -> None:
    late = Late()
    end = opened(late)
    end.connection.leave()
    end.take()
    end.connection.receive(headers(3))
    assert late.asked == []
    assert end.frames() == [(h2.RST_STREAM, 0, 3, Code.REFUSED_STREAM.to_bytes(4, "big"))]


def test_as_many_streams_as_there_may_be() -> None:
    late = Late(None)
    end = opened(late)
    ids = range(3, 3 + 2 * LIMITS.max_streams, 2)
    end.connection.receive(b"".join(map(headers, ids)))
    late.asked.clear()
    late.trailers = TRAILERS
    end.connection.receive(headers(ids.stop))
    assert late.asked == []
    assert end.frames() == [(h2.RST_STREAM, 0, ids.stop, Code.REFUSED_STREAM.to_bytes(4, "big"))]


@pytest.mark.parametrize(
    "so_far",
    [
        pytest.param({"acknowledged": False}, id="the peer has not acknowledged that there is no table"),
        pytest.param({"acknowledged": False, "no_table": False}, id="the peer may still use a table"),
        pytest.param({"answered": False}, id="we have not given up ours"),
    ],
)
def test_a_connection_on_which_a_block_may_mean_something_else(so_far: dict[str, Any]) -> None:
    late = Late()
    end = opened(late, **so_far)
    end.connection.receive(headers(3))
    (call,) = end.calls
    assert call.stream is not None
    assert (late.asked, call.stream.block) == ([], None)


def test_a_client_is_asked_for_nothing() -> None:
    client = End.client()
    call = client.open()
    client.connection.receive(h2.settings_frame({}) + headers(1))
    assert call.fields
