"""Rules that a peer must not break; and any bytes at all lead to events or to a single protocol error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.connection import Http2Connection
from control_plane.protocols.http2.frames import Code, Http2Error, Setting
from control_plane.protocols.http2.headers import KnownBlocks, encode_fields
from tests.unit.protocols.http2.http2_ends import ANSWER, HEAD, LIMITS, End, Listener, data, frame, headers

WINDOW = LIMITS.stream_window_bytes


def settings_of(**values: int) -> bytes:
    return h2.settings_frame({Setting[name]: value for name, value in values.items()})


class TestRules:
    @pytest.mark.parametrize(
        ("sent", "code"),
        [
            pytest.param(headers(2), Code.PROTOCOL_ERROR, id="an even stream"),
            pytest.param(headers(0), Code.PROTOCOL_ERROR, id="a head for the connection"),
            pytest.param(data(1, b"x"), Code.PROTOCOL_ERROR, id="data before a head"),
            pytest.param(data(0, b"x"), Code.PROTOCOL_ERROR, id="data for the connection"),
            pytest.param(h2.rst_stream(1, Code.CANCEL), Code.PROTOCOL_ERROR, id="a reset before a head"),
            pytest.param(h2.rst_stream(0, Code.CANCEL), Code.PROTOCOL_ERROR, id="a reset of the connection"),
            pytest.param(h2.window_update(1, 1), Code.PROTOCOL_ERROR, id="room before a head"),
            pytest.param(headers(1, ends=True) + data(1, b"x"), Code.STREAM_CLOSED, id="data behind the end"),
            pytest.param(headers(1, ends=True) + headers(1), Code.STREAM_CLOSED, id="a head behind the end"),
            pytest.param(headers(1, flags=0) + data(1, b""), Code.PROTOCOL_ERROR, id="data within a head"),
            pytest.param(headers(1, flags=0) + h2.SETTINGS_ACK, Code.PROTOCOL_ERROR, id="settings within a head"),
            pytest.param(headers(1, flags=0) + frame(0xF0, 0, 0, b""), Code.PROTOCOL_ERROR, id="an unknown frame within a head"),
            pytest.param(headers(1, flags=0) + frame(h2.CONTINUATION, 0, 3, b""), Code.PROTOCOL_ERROR, id="another stream's head"),
            pytest.param(frame(h2.CONTINUATION, h2.END_HEADERS, 1, b""), Code.PROTOCOL_ERROR, id="a head without beginning"),
            pytest.param(frame(h2.PING, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR, id="a short ping"),
            pytest.param(frame(h2.PING, 0, 1, bytes(8)), Code.PROTOCOL_ERROR, id="a stream's ping"),
            pytest.param(frame(h2.GOAWAY, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR, id="a short goaway"),
            pytest.param(frame(h2.GOAWAY, 0, 1, bytes(8)), Code.PROTOCOL_ERROR, id="a stream's goaway"),
            pytest.param(frame(h2.PUSH_PROMISE, h2.END_HEADERS, 1, bytes(4)), Code.PROTOCOL_ERROR, id="a push"),
            pytest.param(frame(h2.HEADERS, h2.END_HEADERS, 1, b"\xff\xff\xff\xff"), Code.COMPRESSION_ERROR, id="an unreadable head"),
            pytest.param(headers(1, ((b"x", b"y" * 3_000),)), Code.ENHANCE_YOUR_CALM, id="a long head"),
            pytest.param(
                frame(h2.HEADERS, 0, 1, b"") + frame(h2.CONTINUATION, 0, 1, bytes(1_000)) * 3,
                Code.ENHANCE_YOUR_CALM,
                id="a head without end",
            ),
        ],
    )
    def test_a_breach_is_an_error_of_the_connection(self, sent: bytes, code: Code) -> None:
        with pytest.raises(Http2Error) as caught:
            End.server().connection.receive(sent)
        assert caught.value.http2_code is code

    def test_without_a_table_a_long_head_ends_its_own_stream(self) -> None:
        server, long = End.server(), ((b"x", b"y" * 3_000),)
        server.connection.receive(h2.SETTINGS_ACK + headers(1) + headers(3) + headers(5, long))
        assert [call.was_reset for call in server.calls] == [False, False, True]
        server.connection.receive(headers(1, long, ends=True))
        assert [call.was_reset for call in server.calls] == [True, False, True]
        resets = [(each.stream_id, each.payload) for each in server.frames() if each.kind == h2.RST_STREAM]
        assert resets == [(5, Code.ENHANCE_YOUR_CALM.to_bytes(4, "big")), (1, Code.ENHANCE_YOUR_CALM.to_bytes(4, "big"))]
        server.connection.receive(data(3, b"x", ends=True))
        assert server.calls[1].has_ended

    @pytest.mark.parametrize(
        ("sent", "fields"),
        [
            pytest.param(
                frame(h2.HEADERS, h2.END_HEADERS | h2.PADDED | h2.HAS_PRIORITY, 1, b"\3" + bytes(5) + encode_fields(HEAD) + bytes(3)),
                HEAD,
                id="padding and priority",
            ),
            pytest.param(
                frame(h2.HEADERS, 0, 1, encode_fields(HEAD)[:3])
                + frame(h2.CONTINUATION, 0, 1, b"")
                + frame(h2.CONTINUATION, h2.END_HEADERS, 1, encode_fields(HEAD)[3:]),
                HEAD,
                id="in pieces",
            ),
            pytest.param(frame(h2.PRIORITY, 0, 9, bytes(5)) + headers(1), HEAD, id="a priority of a stream that is not open"),
        ],
    )
    def test_what_is_allowed_though_we_never_do_it(self, sent: bytes, fields: object) -> None:
        server = End.server()
        server.connection.receive(sent)
        assert server.calls[0].fields == [fields]

    def test_streams_beyond_the_limit_are_refused_and_may_be_tried_again(self) -> None:
        server = End.server()
        for stream_id in (1, 3, 5, 7):
            server.connection.receive(headers(stream_id))
        assert [(each.kind, each.stream_id, each.payload) for each in server.frames()] == [(h2.RST_STREAM, 7, b"\0\0\0\7")]
        server.connection.receive(data(7, b"on its way", ends=True) + h2.rst_stream(1, Code.CANCEL) + headers(9))
        assert [each.stream.id for each in server.calls] == [1, 3, 5, 9]

    def test_an_old_stream_is_not_opened_again(self) -> None:
        server = End.server()
        server.connection.receive(headers(5) + h2.rst_stream(5, Code.CANCEL) + headers(3))
        assert [each.stream.id for each in server.calls] == [5]

    def test_pings_are_answered_and_answers_are_not(self) -> None:
        server = End.server()
        server.connection.receive(frame(h2.PING, 0, 0, b"12345678") + frame(h2.PING, h2.ACK, 0, b"12345678"))
        assert server.frames() == [(h2.PING, h2.ACK, 0, b"12345678")]


def stream_of(number: int) -> int:
    return 2 * number + 1


def first(begin: bytes, then: bytes) -> Callable[[int], bytes]:
    return lambda number: then if number else begin + then


def varied(number: int, size: int) -> bytes:
    """A call with a header block that has not been seen before."""
    return headers(stream_of(number), (*HEAD, (b"x", b"%05d" % number * (size // 5))), ends=True)


SERVER_OF_MANY = replace(LIMITS, max_streams=1_000)
NUISANCES = [
    pytest.param(lambda _: frame(h2.PING, 0, 0, bytes(8)), 500, id="pings"),
    pytest.param(lambda _: frame(h2.PING, h2.ACK, 0, bytes(8)), 500, id="acknowledgements of pings"),
    pytest.param(lambda _: settings_of(), 500, id="settings"),
    pytest.param(lambda _: h2.SETTINGS_ACK, 501, id="acknowledgements of settings"),
    pytest.param(first(b"".join(headers(stream_of(n)) for n in range(800)), settings_of()), 9, id="settings for hundreds of streams"),
    pytest.param(lambda _: frame(0xF0, 0, 0, b""), 500, id="unknown frames"),
    pytest.param(lambda _: frame(0xF0, 0, 0, bytes(100)), 500, id="unknown frames with something in them"),
    pytest.param(lambda _: frame(h2.GOAWAY, 0, 0, bytes(8)), 500, id="farewells"),
    pytest.param(lambda _: frame(h2.PRIORITY, 0, 3, bytes(5)), 500, id="priorities"),
    pytest.param(lambda n: headers(stream_of(n)) + h2.rst_stream(stream_of(n), Code.CANCEL), 250, id="streams opened and reset"),
    pytest.param(
        lambda n: headers(stream_of(n)) + data(stream_of(n), b"x", ends=True) + h2.rst_stream(stream_of(n), Code.CANCEL),
        250,
        id="calls sent and reset",
    ),
    pytest.param(lambda n: headers(stream_of(n)), 1_500, id="streams beyond the limit"),
    pytest.param(first(headers(1), data(1, b"")), 500, id="empty data"),
    pytest.param(lambda n: frame(h2.CONTINUATION if n else h2.HEADERS, 0, 1, b""), 501, id="empty continuations"),
    pytest.param(lambda _: h2.window_update(0, 1), 500, id="room that nobody needs"),
    pytest.param(first(headers(1) + h2.rst_stream(1, Code.CANCEL), data(1, b"x")), 7_968, id="data for a stream that is over"),
    pytest.param(first(headers(1) + h2.rst_stream(1, Code.CANCEL), h2.window_update(1, 1)), 7_968, id="room for one that is over"),
    pytest.param(first(headers(1) + h2.rst_stream(1, Code.CANCEL), h2.rst_stream(1, Code.CANCEL)), 7_968, id="resets of one that is over"),
    pytest.param(first(headers(5) + h2.rst_stream(5, Code.CANCEL), headers(3)), 7_968, id="heads of one that is over"),
]


class TestNuisance:
    @pytest.mark.parametrize(("make", "borne"), NUISANCES)
    def test_a_flood_is_borne_up_to_its_limit(self, make: Callable[[int], bytes], borne: int) -> None:
        server = End.server(SERVER_OF_MANY)
        server.connection.receive(b"".join(map(make, range(borne))))
        with pytest.raises(Http2Error) as caught:
            server.connection.receive(make(borne))
        assert caught.value.http2_code is Code.ENHANCE_YOUR_CALM

    @pytest.mark.parametrize(("answer", "borne"), [pytest.param(b"x", 1_000, id="answers"), pytest.param(b"", 71, id="refusals")])
    def test_large_heads_that_are_new_each_time_are_borne_as_far_as_they_bring_answers(self, answer: bytes, borne: int) -> None:
        server = End.server(replace(LIMITS, max_header_bytes=16_384))
        for number in range(borne):
            server.connection.receive(varied(number, 8_000))
            self.answer(server, answer)
        if not answer:
            with pytest.raises(Http2Error, match="ask for nothing"):
                server.connection.receive(varied(borne, 8_000))

    def test_streams_that_took_long_may_be_reset_all_at_once(self) -> None:
        server = End.server(SERVER_OF_MANY)
        server.connection.receive(b"".join(headers(stream_of(number)) for number in range(1_000)))
        server.connection.on_second()
        server.connection.on_second()
        server.connection.receive(b"".join(h2.rst_stream(stream_of(number), Code.CANCEL) for number in range(1_000)))
        assert not server.connection.streams

    def test_pings_between_answers_are_none(self) -> None:
        server = End.server()
        for number in range(2_000):
            server.connection.receive(frame(h2.PING, 0, 0, bytes(8)) * 5 + headers(stream_of(number), ends=True))
            self.answer(server, b"x")
        assert server.connection.answered == 2_000

    def test_pings_between_refusals_are_counted(self) -> None:
        server = End.server()
        for number in range(100):
            server.connection.receive(frame(h2.PING, 0, 0, bytes(8)) * 5 + headers(stream_of(number), ends=True))
            self.answer(server, b"")
        with pytest.raises(Http2Error, match="ask for nothing"):
            server.connection.receive(frame(h2.PING, 0, 0, bytes(8)))

    def answer(self, server: End, body: bytes) -> None:
        stream = server.calls[-1].stream
        if body:
            server.connection.send_data(stream, body)
        server.connection.send_headers(stream, encode_fields(ANSWER), ends=True)
        server.take()

    def test_pings_that_come_slowly_are_none(self) -> None:
        server = End.server()
        for _ in range(10_000):
            server.connection.receive(frame(h2.PING, 0, 0, bytes(8)))
            server.connection.on_second()

    def test_the_rest_of_a_message_that_was_refused_is_none(self) -> None:
        server = End.server()
        server.connection.receive(headers(1))
        server.connection.reset(server.calls[0].stream, Code.NO_ERROR)
        for _ in range(5_000):
            server.connection.receive(data(1, b"x"))

    def test_a_server_of_ours_may_send_what_it_likes(self) -> None:
        client = End.client()
        for _ in range(10_000):
            client.connection.receive(settings_of())
            client.take()


class TestSteps:
    """Data that arrived at once is handled in bounded steps, with the same result."""

    @pytest.mark.parametrize("most", [1, 2, 3, 6])
    def test_so_many_frames_at_a_time(self, most: int) -> None:
        server = End.server()
        assert server.connection.receive(frame(h2.PING, 0, 0, bytes(8)) * 7, most)
        assert len(server.frames()) == most
        taken, has_backlog = most, True
        while has_backlog:
            has_backlog = server.connection.go_on(most)
            taken += (now := len(server.frames()))
            assert now <= most
        assert taken == 7

    def test_what_comes_meanwhile_is_behind_it(self) -> None:
        server = End.server()
        server.connection.receive(headers(1) + data(1, b"a") + data(1, b"b") + data(1, b"c")[:4], 1)
        server.connection.receive(data(1, b"c")[4:] + data(1, b"d"), 1)
        while server.connection.go_on(1):
            pass
        assert server.calls[0].data == b"abcd"

    def test_answers_that_wait_for_room_go_on_a_few_at_a_time(self) -> None:
        server = End.server(SERVER_OF_MANY)
        server.connection.receive(settings_of(INITIAL_WINDOW_SIZE=0) + b"".join(headers(stream_of(n), ends=True) for n in range(100)))
        for call in server.calls:
            server.connection.send_data(call.stream, b"answer")
        server.take()
        assert server.connection.receive(settings_of(INITIAL_WINDOW_SIZE=10), 1)
        sent, has_backlog = server.kinds().count(h2.DATA), True
        assert 0 < sent < 50
        while has_backlog:
            has_backlog = server.connection.go_on(1)
            sent += (now := server.kinds().count(h2.DATA))
            assert now < 20
        assert sent == 100


class TestAnyBytes:
    @settings(max_examples=200)
    @given(
        is_server=st.booleans(),
        greets=st.booleans(),
        parts=st.lists(
            st.one_of(
                st.binary(max_size=60),
                st.builds(
                    frame, st.integers(0, 10), st.integers(0, 255), st.sampled_from([0, 1, 2, 3, 5, 1 << 31]), st.binary(max_size=40)
                ),
                st.builds(headers, st.sampled_from([1, 3, 5, 7]), ends=st.booleans()),
                st.builds(data, st.sampled_from([1, 3, 5]), st.binary(max_size=3_000), ends=st.booleans()),
                st.builds(h2.window_update, st.sampled_from([0, 1, 3]), st.integers(0, h2.MAX_WINDOW_BYTES)),
                st.builds(settings_of, INITIAL_WINDOW_SIZE=st.integers(0, 70_000)),
            ),
            max_size=12,
        ),
        cut=st.integers(1, 50),
        answers=st.booleans(),
    )
    def test_are_told_or_refused_and_the_accounts_hold(
        self, is_server: bool, greets: bool, parts: list[bytes], cut: int, answers: bool
    ) -> None:
        end = End.server() if is_server and greets else End.client()
        if is_server and not greets:
            end.connection = Http2Connection(KnownBlocks(), LIMITS, accept=lambda _: Listener())
        for _ in range(0 if is_server else 2):
            end.open(ends=True)
        received = b"".join(parts)
        try:
            for at in range(0, len(received), cut):
                end.connection.receive(received[at : at + cut])
                self.answer(end, is_server=is_server) if answers else None
                self.assert_accounts_hold(end.connection)
        except Http2Error as exc:
            end.connection.leave(exc.http2_code, str(exc))
        end.connection.end()
        assert not end.connection.streams
        self.assert_accounts_hold(end.connection, is_refused=True)

    def answer(self, end: End, *, is_server: bool) -> None:
        for call in end.calls:
            stream = call.stream
            if stream.id in end.connection.streams:
                end.connection.consumed(stream, len(call.data) // 2)
                if is_server and call.has_ended and not stream.local_is_closed:
                    end.connection.send_headers(stream, encode_fields(ANSWER))
                    end.connection.send_data(stream, bytes(70_000))
                    end.connection.send_data(stream, b"", ends=True)

    def assert_accounts_hold(self, connection: Http2Connection, *, is_refused: bool = False) -> None:
        held = sum(stream.held_bytes for stream in connection.streams.values())
        assert is_refused or connection._state.flow.receive_window >= 0
        assert connection._state.flow.receive_window + connection._state.flow.unreturned + held <= LIMITS.connection_window_bytes
        assert (
            is_refused or connection._state.flow.receive_window + connection._state.flow.unreturned + held == LIMITS.connection_window_bytes
        )
        assert len(connection.streams) <= LIMITS.max_streams
        assert set(connection._state.flow.blocked) <= set(connection.streams)
        for stream in connection.streams.values():
            assert 0 <= stream.held_bytes <= WINDOW
            assert stream.send_window <= h2.MAX_WINDOW_BYTES
            assert (bool(stream.pending) and stream.send_window > 0) == (stream.id in connection._state.flow.blocked)
