"""Windows of streams and of the connection, in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.frames import Code, Http2Error
from control_plane.protocols.http2.headers import encode_fields
from control_plane.protocols.http2.limits import Http2Limits
from tests.unit.protocols.http2.http2_ends import ANSWER, LIMITS, End, Listener, data, frame, headers, settings_of

WINDOW = LIMITS.stream_window_bytes


class TestSending:
    """Data is sent within the peer's flow-control windows only."""

    def ready(self, **peers: int) -> tuple[End, Listener]:
        client = End.client()
        client.connection.receive(settings_of(**peers))
        call = client.open()
        client.take()
        return client, call

    def test_what_has_no_room_waits_and_goes_on_with_each_update(self) -> None:
        client, call = self.ready(INITIAL_WINDOW_SIZE=10)
        client.connection.send_data(call.stream, b"0123456789abcdef", ends=True)
        assert [(each.payload, each.flags) for each in client.frames()] == [(b"0123456789", 0)]
        client.connection.receive(h2.window_update(1, 4))
        assert [(each.payload, each.flags) for each in client.frames()] == [(b"abcd", 0)]
        client.connection.receive(h2.window_update(1, 100))
        assert [(each.payload, each.flags) for each in client.frames()] == [(b"ef", h2.END_STREAM)]

    def test_the_connections_window_holds_for_all_together(self) -> None:
        client = End.client()
        client.connection.receive(settings_of(INITIAL_WINDOW_SIZE=1 << 20))
        calls = [client.open() for _ in range(2)]
        client.take()
        for call in calls:
            client.connection.send_data(call.stream, bytes(50_000))
        assert sum(len(each.payload) for each in client.frames()) == 65_535
        client.connection.receive(h2.window_update(0, 1 << 20))
        assert sum(len(each.payload) for each in client.frames()) == 100_000 - 65_535
        assert [call.drained for call in calls] == [1, 1]

    def test_streams_take_turns_with_the_connections_window(self) -> None:
        client = End.client()
        client.connection.receive(settings_of(INITIAL_WINDOW_SIZE=1 << 30))
        calls = [client.open() for _ in range(3)]
        for call in calls:
            client.connection.send_data(call.stream, bytes(200_000))
        client.take()
        for expected in (1, 3, 5, 1, 3):
            client.connection.receive(h2.window_update(0, 10_000))
            assert [(each.stream_id, len(each.payload)) for each in client.frames()] == [(expected, 10_000)]

    def test_large_data_is_cut_into_full_frames_with_one_head_and_a_last_one(self) -> None:
        client, call = self.ready(INITIAL_WINDOW_SIZE=1 << 20)
        client.connection.receive(h2.window_update(0, 1 << 20))
        client.connection.send_data(call.stream, bytes(64 * 16_384), ends=True)
        heads = {id(piece) for piece in client.connection.output if len(piece) == h2.HEAD_BYTES}
        assert len(heads) == 2
        assert [(len(each.payload), each.flags) for each in client.frames()] == [(16_384, 0)] * 63 + [(16_384, h2.END_STREAM)]

    def test_tells_when_what_waited_has_gone(self) -> None:
        client, call = self.ready(INITIAL_WINDOW_SIZE=10)
        client.connection.send_data(call.stream, bytes(20))
        assert call.drained == 0
        client.connection.receive(h2.window_update(1, 10))
        assert call.drained == 1

    def test_trailers_wait_behind_what_waits(self) -> None:
        server = End.server()
        server.connection.receive(settings_of(INITIAL_WINDOW_SIZE=1) + headers(1, ends=True))
        stream = server.calls[0].stream
        server.take()
        server.connection.send_data(stream, b"ab")
        server.connection.send_headers(stream, encode_fields(ANSWER), ends=True)
        assert server.kinds() == [h2.DATA]
        server.connection.receive(h2.window_update(1, 1))
        assert server.kinds() == [h2.DATA, h2.HEADERS]
        assert not server.connection.streams

    def test_a_window_that_the_peer_made_negative_is_waited_for(self) -> None:
        client, call = self.ready(INITIAL_WINDOW_SIZE=10)
        client.connection.send_data(call.stream, bytes(10))
        client.connection.receive(settings_of(INITIAL_WINDOW_SIZE=2))
        client.take()
        client.connection.send_data(call.stream, b"abc")
        client.connection.receive(h2.window_update(1, 8))
        assert client.kinds() == []
        client.connection.receive(h2.window_update(1, 2))
        assert [each.payload for each in client.frames()] == [b"ab"]

    def test_an_end_without_data_needs_no_window_not_even_a_negative_one(self) -> None:
        client, call = self.ready(INITIAL_WINDOW_SIZE=10)
        client.connection.send_data(call.stream, bytes(10))
        client.connection.receive(settings_of(INITIAL_WINDOW_SIZE=2))
        client.take()
        client.connection.send_data(call.stream, b"", ends=True)
        assert [(each.payload, each.flags) for each in client.frames()] == [(b"", h2.END_STREAM)]

    def test_a_larger_initial_window_lets_on_what_waits(self) -> None:
        client, call = self.ready(INITIAL_WINDOW_SIZE=0)
        client.connection.send_data(call.stream, b"abc")
        assert client.kinds() == []
        client.connection.receive(settings_of(INITIAL_WINDOW_SIZE=3))
        assert [each.payload for each in client.frames() if each.kind == h2.DATA] == [b"abc"]

    @pytest.mark.parametrize(
        "update",
        [
            pytest.param(h2.window_update(0, h2.MAX_WINDOW_BYTES), id="the connection's"),
            pytest.param(h2.window_update(1, h2.MAX_WINDOW_BYTES), id="a stream's"),
            pytest.param(h2.window_update(1, 1 << 30) + settings_of(INITIAL_WINDOW_SIZE=h2.MAX_WINDOW_BYTES), id="by settings"),
        ],
    )
    def test_a_window_that_overflows(self, update: bytes) -> None:
        client, _ = self.ready()
        with pytest.raises(Http2Error) as caught:
            client.connection.receive(update)
        assert caught.value.http2_code is Code.FLOW_CONTROL_ERROR

    @pytest.mark.parametrize("stream_id", [0, 1])
    def test_an_update_of_nothing(self, stream_id: int) -> None:
        client, _ = self.ready()
        with pytest.raises(Http2Error, match="of 0"):
            client.connection.receive(h2.window_update(stream_id, 0))

    @settings(max_examples=60)
    @given(
        sizes=st.lists(st.integers(0, 60_000), min_size=1, max_size=5),
        updates=st.lists(st.tuples(st.sampled_from([0, 1, 3, "initial"]), st.integers(1, 40_000)), max_size=20),
    )
    def test_every_byte_arrives_in_order_and_never_beyond_a_window(self, sizes: list[int], updates: list[tuple[int | str, int]]) -> None:
        client, call = self.ready(INITIAL_WINDOW_SIZE=1_000)
        other = client.open()
        client.take()
        room = {0: h2.DEFAULT_WINDOW_BYTES, 1: 1_000, 3: 1_000}
        initial = 1_000
        expected, seen = {1: b"", 3: b""}, {1: b"", 3: b""}
        for number, size in enumerate(sizes):
            chosen = (call, other)[number % 2]
            expected[chosen.stream.id] += bytes([number]) * size
            client.connection.send_data(chosen.stream, bytes([number]) * size)
        for which, amount in [("initial", 1_000), *updates, (0, 1 << 20), (1, 1 << 20), (3, 1 << 20)]:
            if which == "initial":
                room[1], room[3], initial = room[1] + amount - initial, room[3] + amount - initial, amount
                client.connection.receive(settings_of(INITIAL_WINDOW_SIZE=amount))
            else:
                room[int(which)] += amount
                client.connection.receive(h2.window_update(int(which), amount))
            for each in client.frames():
                if each.kind == h2.DATA:
                    seen[each.stream_id] += each.payload
                    room[0] -= len(each.payload)
                    room[each.stream_id] -= len(each.payload)
                    assert not each.payload or (room[0] >= 0 and room[each.stream_id] >= 0)
        assert seen == expected


class TestReceiving:
    """Bytes are returned to the peer's windows when they are consumed, and never twice."""

    def window_left(self, end: End, stream_id: int) -> int:
        """A window as the peer counts it: what was granted, minus what it has sent, which was `WINDOW`."""
        return sum(
            int.from_bytes(each.payload, "big") for each in end.frames() if (each.kind, each.stream_id) == (h2.WINDOW_UPDATE, stream_id)
        )

    def receive(self, server: End, stream_id: int, size: int) -> None:
        for at in range(0, size, 1 << 14):
            server.connection.receive(data(stream_id, bytes(min(1 << 14, size - at))))

    def test_nothing_is_given_back_before_it_is_consumed(self) -> None:
        server = End.server()
        server.connection.receive(headers(1))
        self.receive(server, 1, WINDOW)
        assert h2.WINDOW_UPDATE not in server.kinds()
        server.connection.consumed(server.calls[0].stream, WINDOW)
        assert self.window_left(server, 1) == WINDOW

    def test_more_than_the_streams_window(self) -> None:
        server = End.server()
        server.connection.receive(headers(1))
        self.receive(server, 1, WINDOW)
        with pytest.raises(Http2Error) as caught:
            server.connection.receive(data(1, b"x"))
        assert caught.value.http2_code is Code.FLOW_CONTROL_ERROR

    def test_more_than_the_connections_window(self) -> None:
        limits = Http2Limits(stream_window_bytes=1 << 18, connection_window_bytes=1 << 17, max_frame_bytes=1 << 14)
        server = End.server(limits)
        server.connection.receive(headers(1))
        self.receive(server, 1, 1 << 17)
        with pytest.raises(Http2Error) as caught:
            server.connection.receive(data(1, b"x"))
        assert caught.value.http2_code is Code.FLOW_CONTROL_ERROR

    def test_of_a_large_message_a_listener_is_told_once_for_each_read(self) -> None:
        """A message in frames of 16 KB, as most clients send it, and reads of 256 KB."""
        server = End.server(Http2Limits())
        server.connection.receive(headers(1))
        pieces: list[int] = []
        server.calls[0].on_data = lambda data, *, ends: pieces.append(len(data))  # type: ignore[method-assign]
        message = b"".join(data(1, bytes(16_384), ends=number == 63) for number in range(64))
        for at in range(0, len(message), 1 << 18):
            server.connection.receive(message[at : at + (1 << 18)])
        assert len(pieces) <= 6
        assert sum(pieces) == 1 << 20

    def test_a_large_frame_of_a_call_that_is_over_is_late_once_however_it_comes(self) -> None:
        """Else the rest of a few refused messages, packet by packet, would count as a flood."""
        server = End.server(Http2Limits())
        server.connection.receive(headers(1))
        server.connection.reset(server.calls[0].stream, Code.CANCEL)
        server.take()
        rest = data(1, bytes(1 << 18))
        for _ in range(70):
            for at in range(0, len(rest), 2048):
                server.connection.receive(rest[at : at + 2048])
        assert h2.GOAWAY not in server.kinds()

    def test_what_a_stream_held_is_the_connections_again_when_it_ends(self) -> None:
        server = End.server()
        for number in range(200):
            stream_id = 2 * number + 1
            server.connection.receive(headers(stream_id))
            self.receive(server, stream_id, WINDOW)
            how = number % 3
            if how == 0:
                server.connection.receive(h2.rst_stream(stream_id, Code.CANCEL))
            elif how == 1:
                server.connection.reset(server.calls[-1].stream, Code.CANCEL)
            else:
                server.connection.send_headers(server.calls[-1].stream, encode_fields(ANSWER), ends=True)
            server.connection.consumed(server.calls[-1].stream, WINDOW)  # too late: it is not counted twice
            server.take()
        assert not server.connection.streams
        assert server.connection._state.flow.receive_window + server.connection._state.flow.unreturned == LIMITS.connection_window_bytes

    def test_padding_counts_and_is_given_back_by_itself(self) -> None:
        server = End.server()
        server.connection.receive(headers(1))
        for _ in range(WINDOW // 256):
            server.connection.receive(frame(h2.DATA, h2.PADDED, 1, b"\xff" + bytes(255)))
        assert server.calls[0].data == b""
        assert server.calls[0].stream.held_bytes == 0
        assert self.window_left(server, 1) >= WINDOW // 2

    def test_data_for_a_stream_that_we_ended_is_the_connections_again(self) -> None:
        server = End.server()
        server.connection.receive(headers(1))
        server.connection.reset(server.calls[0].stream, Code.CANCEL)
        server.take()
        for _ in range(100):
            self.receive(server, 1, LIMITS.connection_window_bytes // 2)
        assert self.window_left(server, 0) >= 49 * LIMITS.connection_window_bytes

    def test_streams_that_wait_do_not_keep_the_window_from_one_that_goes_on(self) -> None:
        server = End.server(Http2Limits(stream_window_bytes=1 << 17, connection_window_bytes=1 << 18, max_frame_bytes=1 << 14))
        server.connection.receive(headers(1) + headers(3))
        self.receive(server, 1, 1 << 17)
        self.receive(server, 3, 1 << 17)
        server.take()
        server.connection.consumed(server.calls[0].stream, 1 << 16)  # a quarter of the connection's, of which nothing is left
        assert self.window_left(server, 0) == 1 << 16

    @settings(max_examples=60)
    @given(st.lists(st.tuples(st.sampled_from([1, 3, 5]), st.integers(0, 16_384), st.integers(0, 30_000)), max_size=60))
    def test_a_peer_that_keeps_to_its_windows_is_never_refused_and_never_stuck(self, steps: list[tuple[int, int, int]]) -> None:
        server = End.server()
        server.connection.receive(headers(1) + headers(3) + headers(5))
        room = {0: LIMITS.connection_window_bytes, 1: WINDOW, 3: WINDOW, 5: WINDOW}
        held = {1: 0, 3: 0, 5: 0}

        def take_updates() -> None:
            for each in server.frames():
                if each.kind == h2.WINDOW_UPDATE:
                    room[each.stream_id] += int.from_bytes(each.payload, "big")

        for stream_id, size, consumed in steps:
            sent = min(size, room[0], room[stream_id])
            server.connection.receive(data(stream_id, bytes(sent)))
            room[0], room[stream_id], held[stream_id] = room[0] - sent, room[stream_id] - sent, held[stream_id] + sent
            server.connection.consumed(server.calls[stream_id // 2].stream, min(consumed, held[stream_id]))
            held[stream_id] -= min(consumed, held[stream_id])
            take_updates()
            assert room[0] == server.connection._state.flow.receive_window
            assert room[0] + sum(held.values()) + server.connection._state.flow.unreturned == LIMITS.connection_window_bytes
            assert sum(held.values()) == sum(each.held_bytes for each in server.connection.streams.values())
        for listener in server.calls:
            server.connection.consumed(listener.stream, WINDOW)
        take_updates()
        assert min(room.values()) > 0
