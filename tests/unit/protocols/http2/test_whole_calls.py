"""Calls that arrive whole are answered without a stream; and all conditions that prevent that."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.frames import Code, Http2Error, Setting
from control_plane.protocols.http2.headers import encode_fields
from control_plane.protocols.http2.limits import Http2Limits
from control_plane.protocols.http2.stream import MAX_WHOLE_BYTES, WholeAnswer, WholeCall
from tests.unit.protocols.http2.http2_ends import ANSWER, HEAD, LIMITS, End, data, frame, headers

BLOCK = encode_fields(HEAD)
BODY = b"message"
KNOWN: WholeAnswer = (encode_fields(ANSWER), b"answer", encode_fields(((b"grpc-status", b"0"),)))
ENDS = h2.END_HEADERS | h2.END_STREAM
ROOM = h2.window_update(0, 1 << 24)


def whole(stream_id: int, payload: bytes = BODY) -> bytes:
    return headers(stream_id) + data(stream_id, payload, ends=True)


@dataclass
class Known:
    """Fake verbatim cache with one answer for every call; records the calls that were looked up."""

    answer: WholeAnswer | None = KNOWN
    asked: list[WholeCall] = field(default_factory=list)

    def __call__(self, call: WholeCall) -> WholeAnswer | None:
        self.asked.append(call)
        return self.answer


def opened(known: Known, limits: Http2Limits = LIMITS, **so_far: bool) -> End:
    """A server that has received a first call (`End.take_first`)."""
    end = End.server(limits, answer_verbatim=known)
    end.take_first(BODY, **so_far)
    known.asked.clear()
    return end


def test_a_known_call_is_answered_without_a_stream() -> None:
    known = Known()
    end = opened(known)
    answered = end.connection.answered
    end.connection.receive(whole(3))
    assert known.asked == [(BLOCK, BODY)]
    assert end.frames() == [
        (h2.HEADERS, h2.END_HEADERS, 3, KNOWN[0]),
        (h2.DATA, 0, 3, KNOWN[1]),
        (h2.HEADERS, ENDS, 3, KNOWN[2]),
    ]
    assert (end.calls, end.connection.streams) == ([], {})
    assert (end.connection.last_peer_stream_id, end.connection.answered) == (3, answered + 1)


def test_a_refusal_is_one_frame_that_ends_the_stream() -> None:
    known = Known((b"", b"", KNOWN[2]))
    end = opened(known)
    end.connection.receive(whole(3))
    assert end.frames() == [(h2.HEADERS, ENDS, 3, KNOWN[2])]


def test_many_at_once_each_have_their_answer() -> None:
    end = opened(Known())
    end.connection.receive(b"".join(whole(stream_id) for stream_id in range(3, 43, 2)))
    assert [each.stream_id for each in end.frames() if each.flags == ENDS] == list(range(3, 43, 2))


def test_they_are_known_also_where_their_frames_are_read_an_odd_number_at_a_time() -> None:
    known = Known()
    end = opened(known)
    has_more = end.connection.receive(frame(h2.PING, 0, 0, bytes(8)) + b"".join(map(whole, range(3, 13, 2))), 2)
    while has_more:
        has_more = end.connection.go_on(3)
    assert known.asked == [(BLOCK, BODY)] * 5


def test_of_heads_alone_no_more_are_handled_at_a_time() -> None:
    end = opened(Known())
    end.connection.receive(b"".join(headers(stream_id) for stream_id in range(3, 203, 2)), 2)
    assert len(end.calls) <= 1 + 3
    end.connection.go_on(2)
    assert len(end.calls) <= 1 + 6


def test_one_that_is_not_known_takes_the_ordinary_path_with_its_bytes() -> None:
    known = Known(None)
    end = opened(known)
    end.connection.receive(whole(3))
    (call,) = end.calls
    assert call.stream is not None
    assert (call.fields, bytes(call.data), call.has_ended, call.stream.whole) == ([HEAD], BODY, True, (BLOCK, BODY))


def test_trailers_and_the_last_data_of_a_call_are_not_taken_for_a_call() -> None:
    """Otherwise the answer to one call could be cached as that to another."""
    known = Known()
    end = opened(known)
    end.connection.receive(headers(3) + data(3, b"first"))
    end.connection.receive(whole(3))
    (call,) = end.calls
    assert call.stream is not None
    assert (bytes(call.data), call.stream.whole, known.asked) == (b"first" + BODY, None, [])


def test_ordinary_calls_before_and_after_known_ones() -> None:
    known = Known()
    end = opened(known)
    for stream_id in (3, 7, 11, 15):
        end.connection.receive(whole(stream_id))
        assert end.frames()[-1] == (h2.HEADERS, ENDS, stream_id, KNOWN[2])
        end.connection.receive(headers(stream_id + 2) + data(stream_id + 2, b"x"))
        stream = end.calls[-1].stream
        assert stream is not None
        assert stream.id == stream_id + 2
        end.connection.receive(data(stream.id, b"y", ends=True))
        end.connection.consumed(stream, 2)
        end.connection.send_headers(stream, KNOWN[2], ends=True)
        assert end.frames()[-1] == (h2.HEADERS, ENDS, stream.id, KNOWN[2])
    assert [bytes(call.data) for call in end.calls] == [b"xy"] * 4


def test_frames_that_come_late_for_a_known_call_do_no_harm() -> None:
    end = opened(Known())
    end.connection.receive(whole(3))
    end.take()
    end.connection.receive(h2.window_update(3, 100) + h2.rst_stream(3, Code.CANCEL))
    assert end.take() == b""


class TestWindows:
    def test_the_connections_window_is_given_back(self) -> None:
        known, payload = Known(), bytes(10_000)
        limits = replace(LIMITS, connection_window_bytes=100_000, stream_window_bytes=1 << 17)
        end = opened(known, limits)
        end.connection.receive(ROOM)
        room = limits.connection_window_bytes - len(BODY)
        for number in range(200):
            end.connection.receive(whole(3 + 2 * number, payload))
            room -= len(payload)
            room += sum(int.from_bytes(each.payload, "big") for each in end.frames() if each.kind == h2.WINDOW_UPDATE)
            assert len(payload) <= room <= limits.connection_window_bytes
        assert (len(known.asked), end.calls) == (200, [])
        end.connection.receive(headers(1001))
        for _ in range(room // 10_000):
            end.connection.receive(data(1001, payload))
        with pytest.raises(Http2Error) as caught:
            end.connection.receive(data(1001, bytes(room % 10_000 + 1)))
        assert caught.value.http2_code is Code.FLOW_CONTROL_ERROR

    def test_more_than_the_window_holds_is_an_error(self) -> None:
        known = Known()
        end = opened(known, replace(LIMITS, connection_window_bytes=1 << 16, stream_window_bytes=1 << 16))
        end.connection.receive(headers(3) + b"".join(data(3, bytes(16_000)) for _ in range(4)))
        with pytest.raises(Http2Error) as caught:
            end.connection.receive(whole(5, bytes(10_000)))
        assert caught.value.http2_code is Code.FLOW_CONTROL_ERROR
        assert known.asked == []

    def test_no_answer_goes_beyond_the_peers_window(self) -> None:
        known = Known((KNOWN[0], bytes(MAX_WHOLE_BYTES), KNOWN[2]))
        end = opened(known)
        for stream_id in (3, 5, 7, 9, 11, 13):
            end.connection.receive(whole(stream_id))
        sent = sum(len(each.payload) for each in end.frames() if each.kind == h2.DATA)
        assert sent == 4 * MAX_WHOLE_BYTES <= h2.DEFAULT_WINDOW_BYTES
        assert [call.stream.id for call in end.calls if call.stream] == [11, 13]
        end.connection.receive(ROOM + whole(15))
        assert end.frames()[-1] == (h2.HEADERS, ENDS, 15, KNOWN[2])

    @pytest.mark.parametrize(("size", "is_known"), [(MAX_WHOLE_BYTES - 1, False), (MAX_WHOLE_BYTES, True)])
    def test_nor_beyond_a_streams(self, size: int, is_known: bool) -> None:
        known = Known()
        end = opened(known)
        end.connection.receive(h2.settings_frame({Setting.INITIAL_WINDOW_SIZE: size}))
        end.connection.receive(whole(3))
        assert (len(known.asked), len(end.calls)) == ((1, 0) if is_known else (0, 1))


class TestWhatIsInItsWay:
    def test_an_even_stream(self) -> None:
        known = Known()
        with pytest.raises(Http2Error):
            opened(known).connection.receive(whole(4))
        assert known.asked == []

    @pytest.mark.parametrize("stream_id", [3, 5])
    def test_a_stream_that_is_not_new(self, stream_id: int) -> None:
        known = Known()
        end = opened(known)
        end.connection.receive(whole(5))
        end.take()
        end.connection.receive(whole(stream_id))
        assert (len(known.asked), end.take(), end.calls) == (1, b"", [])

    def test_a_connection_that_leaves(self) -> None:
        known = Known()
        end = opened(known)
        end.connection.leave()
        end.take()
        end.connection.receive(whole(3))
        assert (known.asked, end.calls) == ([], [])
        assert end.frames() == [(h2.RST_STREAM, 0, 3, Code.REFUSED_STREAM.to_bytes(4, "big"))]

    def test_as_many_streams_as_there_may_be(self) -> None:
        known = Known()
        end = opened(known)
        end.connection.receive(headers(3) + headers(5) + headers(7) + whole(9))
        assert (known.asked, len(end.calls)) == ([], LIMITS.max_streams)
        assert end.frames() == [(h2.RST_STREAM, 0, 9, Code.REFUSED_STREAM.to_bytes(4, "big"))]

    @pytest.mark.parametrize(
        "so_far",
        [
            pytest.param({"acknowledged": False}, id="the peer has not acknowledged that there is no table"),
            pytest.param({"acknowledged": False, "no_table": False}, id="the peer may still use a table"),
            pytest.param({"answered": False}, id="we have not given up ours"),
        ],
    )
    def test_a_connection_on_which_a_block_may_mean_something_else(self, so_far: dict[str, Any]) -> None:
        known = Known()
        end = opened(known, **so_far)
        end.connection.receive(whole(3))
        (call,) = end.calls
        assert call.stream is not None
        assert (known.asked, call.stream.whole, bytes(call.data)) == ([], None, BODY)

    @pytest.mark.parametrize("cut", range(1, len(whole(3))))
    def test_a_call_in_two_reads_is_known_if_its_head_was_not_read_before(self, cut: int) -> None:
        known, call = Known(), whole(3)
        end = opened(known)
        end.connection.receive(call[:cut])
        end.connection.receive(call[cut:])
        if cut < len(headers(3)):  # both frames are there with the second
            assert (known.asked, end.calls) == ([(BLOCK, BODY)], [])
        else:
            assert (known.asked, [(bytes(each.data), each.has_ended) for each in end.calls]) == ([], [(BODY, True)])

    @pytest.mark.parametrize(
        "sent",
        [
            pytest.param(headers(3) + data(3, BODY), id="more to come"),
            pytest.param(headers(3, ends=True), id="no data"),
            pytest.param(headers(3) + frame(h2.DATA, h2.END_STREAM | h2.PADDED, 3, b"\2" + BODY + b"\0\0"), id="padded data"),
            pytest.param(
                frame(h2.HEADERS, h2.END_HEADERS | h2.PADDED, 3, b"\1" + BLOCK + b"\0") + data(3, BODY, ends=True), id="padded head"
            ),
            pytest.param(headers(3) + data(3, bytes(MAX_WHOLE_BYTES + 1), ends=True), id="too large"),
            pytest.param(headers(3) + h2.ping(b"12345678") + data(3, BODY, ends=True), id="a frame between"),
            pytest.param(
                headers(3) + frame(h2.WINDOW_UPDATE, 1, 3, b"\0\0\0\1") + data(3, BODY, ends=True), id="a flag that means nothing"
            ),
            pytest.param(headers(3) + headers(5) + data(3, BODY, ends=True), id="a head between"),
            pytest.param(
                frame(h2.HEADERS, 0, 3, BLOCK[:3]) + frame(h2.CONTINUATION, h2.END_HEADERS, 3, BLOCK[3:]) + data(3, BODY, ends=True),
                id="a head in two frames",
            ),
        ],
    )
    def test_a_call_that_is_not_two_plain_frames(self, sent: bytes) -> None:
        known = Known()
        end = opened(known)
        end.connection.receive(sent)
        assert known.asked == []
        assert end.calls[0].fields == [HEAD]
        assert end.calls[0].stream is not None
        assert end.calls[0].stream.whole is None

    def test_data_of_another_stream_behind_the_head(self) -> None:
        known = Known()
        end = opened(known)
        end.connection.receive(headers(3) + headers(5) + data(3, BODY, ends=True) + data(5, b"other", ends=True))
        assert known.asked == []
        assert [bytes(call.data) for call in end.calls] == [BODY, b"other"]

    def test_a_client_is_asked_for_nothing(self) -> None:
        client = End.client()
        call = client.open(ends=True)
        client.connection.receive(h2.settings_frame({}) + whole(1))
        assert bytes(call.data) == BODY
