from __future__ import annotations

import pytest

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.connection import Http2Connection
from control_plane.protocols.http2.frames import Code, Http2Error, Setting
from control_plane.protocols.http2.headers import KnownBlocks, encode_fields
from tests.unit.protocols.http2.http2_ends import ANSWER, HEAD, LIMITS, End, Listener, data, exchange, frame, headers, settings_of

WINDOW = LIMITS.stream_window_bytes


class TestOpening:
    def test_a_server_announces_what_it_allows(self) -> None:
        connection = Http2Connection(KnownBlocks(), LIMITS, accept=lambda _: Listener())
        connection.start()
        first, second = h2.FrameReader(100).feed(b"".join(connection.output))
        assert h2.read_settings(first[3]) == {
            Setting.HEADER_TABLE_SIZE: 0,
            Setting.INITIAL_WINDOW_SIZE: WINDOW,
            Setting.MAX_FRAME_SIZE: LIMITS.max_frame_bytes,
            Setting.MAX_HEADER_LIST_SIZE: LIMITS.max_header_bytes,
            Setting.MAX_CONCURRENT_STREAMS: LIMITS.max_streams,
        }
        assert second == (h2.WINDOW_UPDATE, 0, 0, (LIMITS.connection_window_bytes - 65_535).to_bytes(4, "big"))

    def test_a_client_says_the_preface_first_and_allows_no_push(self) -> None:
        connection = Http2Connection(KnownBlocks(), LIMITS)
        connection.start()
        written = b"".join(connection.output)
        assert written.startswith(h2.PREFACE)
        first = h2.FrameReader(100).feed(written[len(h2.PREFACE) :])[0]
        assert h2.read_settings(first[3])[Setting.ENABLE_PUSH] == 0

    def test_the_preface_may_come_byte_by_byte(self) -> None:
        connection = Http2Connection(KnownBlocks(), LIMITS, accept=lambda _: Listener())
        for byte in h2.PREFACE:
            assert connection.awaits_preface
            connection.receive(bytes([byte]))
        assert not connection.awaits_preface

    @pytest.mark.parametrize("opening", [b"GET / HTTP/1.1\r\n", b"P", b"\x16\x03\x01", h2.PREFACE[:-1] + b"x"])
    def test_another_protocol_is_refused_at_the_first_byte_that_differs(self, opening: bytes) -> None:
        connection = Http2Connection(KnownBlocks(), LIMITS, accept=lambda _: Listener())
        if h2.PREFACE.startswith(opening):
            connection.receive(opening)
            opening = b"x"
        with pytest.raises(Http2Error, match="preface"):
            connection.receive(opening)

    def test_a_call_there_and_back(self) -> None:
        client, server = End.client(), End.server()
        call = client.open()
        client.connection.send_data(call.stream, b"question", ends=True)
        exchange(client, server)
        seen = server.calls[0]
        assert (seen.fields, bytes(seen.data), seen.has_ended) == ([HEAD], b"question", True)
        server.connection.send_headers(seen.stream, encode_fields(ANSWER))
        server.connection.send_data(seen.stream, b"answer")
        server.connection.send_headers(seen.stream, encode_fields(((b"grpc-status", b"0"),)), ends=True)
        exchange(client, server)
        assert (call.fields, bytes(call.data), call.has_ended) == ([ANSWER, ((b"grpc-status", b"0"),)], b"answer", True)
        assert not client.connection.streams
        assert not server.connection.streams
        assert not call.was_reset


class TestSettings:
    def test_are_acknowledged_once_each(self) -> None:
        server = End.server()
        server.connection.receive(settings_of(MAX_FRAME_SIZE=1 << 15) + settings_of())
        assert [(each.kind, each.flags, each.payload) for each in server.frames()] == [(h2.SETTINGS, h2.ACK, b"")] * 2

    def test_unknown_ones_and_unknown_frames_are_passed_over(self) -> None:
        server = End.server()
        server.connection.receive(frame(h2.SETTINGS, 0, 0, b"\xff\xff\0\0\0\1") + frame(0xF0, 0xFF, 5, b"grease") + frame(0xF0, 0, 0, b""))
        assert server.kinds() == [h2.SETTINGS]

    def test_frames_we_write_grow_with_the_peers_limit(self) -> None:
        client = End.client()
        client.connection.receive(settings_of(MAX_FRAME_SIZE=1 << 15, INITIAL_WINDOW_SIZE=1 << 20))
        call = client.open()
        client.take()
        client.connection.send_data(call.stream, bytes(1 << 15), ends=True)
        assert [len(each.payload) for each in client.frames()] == [1 << 15]

    def test_a_head_longer_than_a_frame_goes_on_in_continuations(self) -> None:
        client = End.client()
        listener = Listener()
        stream = client.connection.open(listener)
        block = encode_fields(((b"x", b"y" * 40_000),))
        client.connection.send_headers(stream, block, ends=True)
        written = client.frames()
        assert [(each.kind, each.flags) for each in written] == [
            (h2.HEADERS, h2.END_STREAM),
            (h2.CONTINUATION, 0),
            (h2.CONTINUATION, h2.END_HEADERS),
        ]
        assert b"".join(each.payload for each in written).endswith(block)

    def test_the_peers_limit_of_streams_counts(self) -> None:
        client = End.client()
        client.connection.receive(settings_of(MAX_CONCURRENT_STREAMS=1))
        assert client.connection.may_open()
        call = client.open(ends=True)
        assert not client.connection.may_open()
        client.connection.receive(headers(call.stream.id, ANSWER, ends=True))
        assert client.connection.may_open()

    @pytest.mark.parametrize(
        ("sent", "code"),
        [
            pytest.param(settings_of(INITIAL_WINDOW_SIZE=1 << 31), Code.FLOW_CONTROL_ERROR, id="a window beyond the maximum"),
            pytest.param(settings_of(MAX_FRAME_SIZE=16_383), Code.PROTOCOL_ERROR, id="frames too small"),
            pytest.param(settings_of(MAX_FRAME_SIZE=1 << 24), Code.PROTOCOL_ERROR, id="frames too large"),
            pytest.param(frame(h2.SETTINGS, h2.ACK, 0, bytes(6)), Code.FRAME_SIZE_ERROR, id="an acknowledgement with content"),
            pytest.param(frame(h2.SETTINGS, 0, 1, b""), Code.PROTOCOL_ERROR, id="for a stream"),
        ],
    )
    def test_that_cannot_be(self, sent: bytes, code: Code) -> None:
        with pytest.raises(Http2Error) as caught:
            End.server().connection.receive(sent)
        assert caught.value.http2_code is code

    def test_many_in_one_frame_cost_no_more_than_one(self) -> None:
        server = End.server()
        server.connection.receive(headers(1))
        many = b"".join(b"\0\4" + value.to_bytes(4, "big") for value in range(32))
        server.connection.receive(frame(h2.SETTINGS, 0, 0, many))
        assert server.calls[0].stream.send_window == 31


class TestEnding:
    def test_a_server_that_has_answered_wants_no_more_of_the_request(self) -> None:
        server = End.server()
        server.connection.receive(headers(1))
        server.connection.send_headers(server.calls[0].stream, encode_fields(ANSWER), ends=True)
        *_, last = server.frames()
        assert last == (h2.RST_STREAM, 0, 1, bytes(4))
        assert not server.connection.streams
        server.connection.receive(data(1, b"on its way", ends=True))

    def test_also_when_the_answer_waited_for_room(self) -> None:
        server = End.server()
        server.connection.receive(settings_of(INITIAL_WINDOW_SIZE=0) + headers(1))
        stream = server.calls[0].stream
        server.connection.send_data(stream, b"x")
        server.connection.send_headers(stream, encode_fields(ANSWER), ends=True)
        server.take()
        server.connection.receive(h2.window_update(1, 1))
        assert server.kinds() == [h2.DATA, h2.HEADERS, h2.RST_STREAM]
        assert not server.connection.streams

    def test_a_client_that_is_answered_early_sends_no_more(self) -> None:
        client = End.client()
        call = client.open()
        client.connection.send_data(call.stream, bytes(100_000), ends=True)
        client.take()
        client.connection.receive(headers(1, ANSWER, ends=True) + h2.rst_stream(1, Code.NO_ERROR))
        assert call.fields == [ANSWER]
        assert not call.was_reset  # the answer is what counts
        assert client.kinds() == [h2.RST_STREAM]
        assert not client.connection.streams

    def test_a_reset_is_told_once_and_frees_what_waited(self) -> None:
        client = End.client()
        call = client.open()
        client.connection.send_data(call.stream, bytes(100_000))
        client.connection.receive(h2.rst_stream(1, Code.CANCEL) * 2)
        assert call.was_reset
        client.take()
        client.connection.receive(h2.window_update(0, 1 << 20))
        assert client.kinds() == []

    def test_the_end_of_the_connection_resets_every_stream(self) -> None:
        client = End.client()
        calls = [client.open() for _ in range(3)]
        client.connection.end()
        assert [call.was_reset for call in calls] == [True] * 3
        assert not client.connection.streams

    def test_a_reset_of_our_own_is_not_told(self) -> None:
        client = End.client()
        call = client.open()
        client.take()
        client.connection.reset(call.stream, Code.CANCEL)
        client.connection.reset(call.stream, Code.CANCEL)
        assert client.kinds() == [h2.RST_STREAM]
        assert not call.was_reset


class TestLeaving:
    def test_streams_under_way_end_well_and_new_ones_are_refused(self) -> None:
        server = End.server()
        server.connection.receive(headers(1))
        server.connection.leave()
        server.connection.leave()
        assert [(each.kind, each.payload[:8]) for each in server.frames()] == [(h2.GOAWAY, b"\0\0\0\1" + bytes(4))]
        server.connection.receive(headers(3) + data(3, b"x", ends=True) + data(1, b"y", ends=True))
        assert [(each.kind, each.stream_id, each.payload) for each in server.frames()] == [(h2.RST_STREAM, 3, b"\0\0\0\7")]
        assert bytes(server.calls[0].data) == b"y"
        assert len(server.calls) == 1

    def test_streams_that_cross_the_announcement_are_taken(self) -> None:
        client, server = End.client(), End.server()
        server.connection.announce_drain()
        call = client.open(ends=True)
        server.connection.receive(client.take())
        client.connection.receive(server.take())
        assert not client.connection.may_open()
        assert not call.was_reset
        server.connection.receive(client.take())
        assert [(each.kind, each.payload[:4]) for each in server.frames()] == [(h2.GOAWAY, b"\0\0\0\1")]
        server.connection.receive(headers(3))
        assert [each.kind for each in server.frames()] == [h2.RST_STREAM]
        assert len(server.calls) == 1

    def test_a_ping_of_the_peers_own_ends_nothing(self) -> None:
        server = End.server()
        server.connection.announce_drain()
        server.connection.receive(frame(h2.PING, h2.ACK, 0, bytes(8)) + headers(1))
        assert len(server.calls) == 1

    def test_a_server_that_leaves_answers_the_streams_it_names_only(self) -> None:
        client = End.client()
        first, second = client.open(ends=True), client.open(ends=True)
        client.connection.receive(h2.goaway(1, Code.NO_ERROR))
        assert not client.connection.may_open()
        assert (first.was_reset, second.was_reset) == (False, True)
        client.connection.receive(headers(1, ANSWER, ends=True))
        assert first.has_ended

    def test_one_that_leaves_in_two_steps(self) -> None:
        client = End.client()
        call = client.open(ends=True)
        client.connection.receive(h2.goaway(h2.MAX_STREAM_ID, Code.NO_ERROR))
        assert not client.connection.may_open()
        assert not call.was_reset
        client.connection.receive(h2.goaway(0, Code.NO_ERROR))
        assert call.was_reset
