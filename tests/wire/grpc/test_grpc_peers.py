"""gRPC clients that use parts of the protocol that grpc's own client does not use."""

from __future__ import annotations

import asyncio

import h2.errors
import h2.events
import h2.settings
import hpack
import pytest

from control_plane.core.infer_call import Outcome
from control_plane.frontends.common import connection_server
from control_plane.frontends.grpc import connection as grpc_connection
from control_plane.protocols.grpc import frame_message, message_answer
from control_plane.protocols.http2 import frames as frames
from control_plane.protocols.http2.frames import Code
from control_plane.protocols.http2.headers import NO_TABLE, encode_fields
from tests.fakes import FakeGrpc
from tests.unit.protocols.http2.http2_ends import data, frame, headers
from tests.wire.grpc_frontend import frontend, infer_message, until
from tests.wire.h2_calls import HEAD, OPENING, RAW_HEAD, answered, ask, begin, closed, farewell, first_headers, goaways, goodbye


class TestOtherClients:
    """Valid clients that behave unlike grpc's own."""

    async def test_a_table_of_headers_until_it_is_forbidden_and_none_from_then_on(self) -> None:
        async with frontend() as it:
            peer = await it.connect()
            encoder = hpack.Encoder()

            def call(stream_id: int) -> bytes:
                block = encoder.encode([*HEAD, ("x-tenant", "a")])
                return frame(frames.HEADERS, frames.END_HEADERS, stream_id, block) + data(
                    stream_id, frame_message(infer_message()), ends=True
                )

            await peer.send_raw(frames.PREFACE + frames.settings_frame({}) + call(1) + call(3))
            encoder.header_table_size = 0
            await peer.send_raw(frames.SETTINGS_ACK + call(5) + call(7) + call(9))
            await until(lambda: len(it.recorder.records) == 5)
            assert all((b"x-tenant", b"a") in each.head.metadata for each in it.upstream.grpc.requests)

    async def test_a_client_that_keeps_its_table_is_refused(self) -> None:
        async with frontend() as it:
            encoder = hpack.Encoder()  # its second block refers to what the first one has put into the table
            calls = [frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, number, encoder.encode(HEAD)) for number in (1, 3)]
            assert await goodbye(it, OPENING + b"".join(calls)) == Code.COMPRESSION_ERROR

    async def test_a_client_that_has_no_table_need_not_say_so(self) -> None:
        """As .NET's and nginx's, which pass over the size of the table that they may have."""

        def call(stream_id: int) -> bytes:
            return headers(stream_id, RAW_HEAD) + data(stream_id, frame_message(infer_message()), ends=True)

        async with frontend() as it:
            peer = await it.connect()
            await peer.send_raw(frames.PREFACE + frames.settings_frame({}) + call(1))
            await peer.send_raw(frames.SETTINGS_ACK + call(3) + call(5))
            await until(lambda: it.recorder.outcomes == [Outcome.ANSWERED] * 3)

    async def test_many_calls_one_after_another_and_at_once(self) -> None:
        async with frontend() as it:
            peer = await it.peer()
            for number in range(50):
                assert await ask(peer, 2 * number + 1) == infer_message()
            ids = range(101, 201, 2)
            for stream_id in ids:
                peer.state.send_headers(stream_id, HEAD)
            for stream_id in reversed(ids):
                peer.state.send_data(stream_id, frame_message(infer_message(id_=str(stream_id))), end_stream=True)
            await peer.flush()
            for stream_id in ids:
                assert await answered(peer, stream_id) == infer_message(id_=str(stream_id))
            assert it.open_streams == 0

    async def test_a_head_and_a_message_in_pieces_padded_and_with_priorities(self) -> None:
        block, message = NO_TABLE + encode_fields(RAW_HEAD), frame_message(infer_message())
        sent = (
            frame(frames.PRIORITY, 0, 1, bytes(4) + b"\x10")
            + frame(frames.HEADERS, frames.PADDED | frames.HAS_PRIORITY, 1, b"\2" + bytes(5) + block[:7] + bytes(2))
            + frame(frames.CONTINUATION, 0, 1, block[7:9])
            + frame(frames.CONTINUATION, frames.END_HEADERS, 1, block[9:])
            + b"".join(frame(frames.DATA, frames.PADDED, 1, b"\3" + message[at : at + 1] + bytes(3)) for at in range(len(message)))
            + frame(0xF5, 0, 1, b"grease")
            + frame(frames.DATA, frames.END_STREAM, 1, b"")
        )

        async with frontend() as it:
            peer = await it.connect()
            for at in range(0, len(OPENING + sent), 7):
                await peer.send_raw((OPENING + sent)[at : at + 7])
            await until(lambda: it.recorder.outcomes == [Outcome.ANSWERED])
            assert it.upstream.grpc.requests[0].frame == message

    async def test_trailers_of_the_clients_end_its_request(self) -> None:
        async with frontend() as it:
            peer = await it.peer()
            await begin(peer)
            peer.state.send_data(1, frame_message(infer_message()))
            peer.state.send_headers(1, [("x-checksum", "1")], end_stream=True)
            await peer.flush()
            assert await answered(peer) == infer_message()

    @pytest.mark.parametrize("window", [0, 1, 7, 1000])
    async def test_windows_of_a_few_bytes(self, window: int) -> None:
        async with frontend() as it:
            peer = await it.peer(settings={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
            peer.reads_on = False
            await begin(peer)
            peer.state.send_data(1, frame_message(infer_message(padding=500)), end_stream=True)
            await peer.flush()
            await until(lambda: it.recorder.records)
            peer.state.increment_flow_control_window(300, 1)
            await peer.flush()
            peer.state.increment_flow_control_window(5_000, 1)
            await peer.flush()
            assert await answered(peer) == infer_message(padding=500)

    async def test_a_window_that_shrinks_under_an_answer(self) -> None:
        async with frontend(FakeGrpc(answer=lambda _: message_answer(bytes(100_000)))) as it:
            peer = await it.peer()
            peer.reads_on = False
            await begin(peer)
            peer.state.send_data(1, frame_message(infer_message()), end_stream=True)
            await peer.flush()
            await peer.wait_for(h2.events.DataReceived)
            peer.state.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
            await peer.flush()
            await peer.wait_for(h2.events.SettingsAcknowledged)
            peer.state.increment_flow_control_window(1 << 20)
            peer.state.increment_flow_control_window(1 << 20, 1)
            await peer.flush()
            await peer.wait_for(h2.events.TrailersReceived)

    async def test_a_large_answer_in_frames_as_large_as_the_client_allows(self) -> None:
        async with frontend(FakeGrpc(answer=lambda _: message_answer(bytes(3 << 20)))) as it:
            wanted = {h2.settings.SettingCodes.MAX_FRAME_SIZE: 1 << 20, h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 23}
            peer = await it.peer(settings=wanted)
            peer.state.increment_flow_control_window(1 << 23)
            assert len(await ask(peer)) == 3 << 20

    async def test_a_ping_is_answered_between_calls(self) -> None:
        async with frontend() as it:
            peer = await it.peer()
            peer.state.ping(b"12345678")
            await peer.flush()
            assert (await peer.wait_for(h2.events.PingAckReceived)).ping_data == b"12345678"

    async def test_a_client_that_says_goodbye_gets_its_answers(self) -> None:
        async with frontend() as it:
            it.upstream.grpc.calls.hold()
            peer = await it.connect()
            call = headers(1, RAW_HEAD) + data(1, frame_message(infer_message()), ends=True)
            await peer.send_raw(frames.PREFACE + frames.settings_frame({}) + call + frames.goaway(0, Code.NO_ERROR))
            await it.upstream.grpc.calls.arrivals.get()
            it.upstream.grpc.calls.may_answer.set()
            await until(lambda: it.recorder.outcomes == [Outcome.ANSWERED])


class TestDrain:
    async def test_a_call_that_crosses_the_goodbye_is_answered_and_one_behind_it_refused(self) -> None:
        def call(stream_id: int) -> bytes:
            return headers(stream_id, RAW_HEAD) + data(stream_id, frame_message(infer_message()), ends=True)

        async with frontend() as it:
            it.upstream.grpc.calls.hold()
            peer = await it.connect()
            await peer.send_raw(OPENING + first_headers(1, RAW_HEAD) + data(1, frame_message(infer_message()), ends=True))
            await it.upstream.grpc.calls.arrivals.get()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(it.server.drain(20))
                await asyncio.sleep(0)
                await peer.send_raw(call(3))
                await it.upstream.grpc.calls.arrivals.get()
                leaving = tasks.create_task(farewell(peer))
                (connection,) = it.server._connections
                await until(lambda: connection._state.is_leaving)
                await peer.send_raw(call(5))
                await asyncio.sleep(0.05)
                it.upstream.grpc.calls.may_answer.set()
                seen = await leaving
            assert goaways(seen) == [(frames.MAX_STREAM_ID, Code.NO_ERROR), (3, Code.NO_ERROR)]
            assert {each.stream_id for each in seen if each.kind == frames.DATA} == {1, 3}
            refused = [each for each in seen if each.stream_id == 5]
            assert [(each.kind, each.payload[-1]) for each in refused] == [(frames.RST_STREAM, Code.REFUSED_STREAM)]

    async def test_a_client_that_acknowledges_nothing_is_not_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection_server, "_MAX_SWEEP_S", 0.01)
        monkeypatch.setattr(grpc_connection, "_MAX_GOAWAY_WAIT_S", 0.05)

        async with frontend() as it:
            peer = await it.peer()
            assert await ask(peer) == infer_message()
            await it.server.drain(10_000)
            assert await closed(peer)

    async def test_a_goodbye_names_the_last_call_and_waits_for_it(self) -> None:
        async with frontend() as it:
            it.upstream.grpc.calls.hold()
            peer, idle = await it.peer(), await it.peer()
            await begin(peer)
            peer.state.send_data(1, frame_message(infer_message()), end_stream=True)
            await peer.flush()
            await it.upstream.grpc.calls.arrivals.get()
            async with asyncio.TaskGroup() as tasks:
                draining = tasks.create_task(it.server.drain(20))
                leaving = tasks.create_task(farewell(peer))
                await farewell(idle)
                assert not draining.done()
                with pytest.raises(OSError):
                    await it.connect()
                it.upstream.grpc.calls.may_answer.set()
                seen = await leaving
            assert goaways(seen)[-1] == (1, Code.NO_ERROR)
            assert [each.kind for each in seen if each.stream_id] == [frames.HEADERS, frames.DATA, frames.HEADERS]

    async def test_a_client_that_does_not_read_its_answer_is_cut_off(self) -> None:
        async with frontend(FakeGrpc(answer=lambda _: message_answer(bytes(32 << 20)))) as it:
            peer = await it.connect()
            wide = frames.settings_frame({frames.Setting.INITIAL_WINDOW_SIZE: 1 << 30}) + frames.window_update(0, 1 << 30)
            await peer.send_raw(frames.PREFACE + wide + headers(1, RAW_HEAD) + data(1, frame_message(infer_message()), ends=True))
            await until(lambda: it.recorder.records)
            await it.server.drain(0.1)
            await until(lambda: not it.server._connections)
