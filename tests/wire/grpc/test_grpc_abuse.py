"""The gRPC frontend against misbehaving clients: by the `h2` library, and by frames written by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import h2.errors
import h2.events
import h2.settings
import pytest

from control_plane.core.infer_call import Outcome
from control_plane.frontends.common import connection_server
from control_plane.protocols.grpc import frame_message, message_answer
from control_plane.protocols.http2 import frames as frames
from control_plane.protocols.http2.frames import Code
from tests.aio import settle
from tests.fakes import FakeGrpc
from tests.unit.protocols.http2.http2_ends import data, frame, headers
from tests.wire.grpc_frontend import INFER, LIMITS, MAX_MESSAGE_BYTES, STREAM, frontend, infer_message, until
from tests.wire.h2_calls import HEAD, OPENING, RAW_HEAD, answered, ask, begin, closed, farewell, first_headers, goaways, goodbye, status

SOON = replace(LIMITS, header_timeout_s=0.05, body_timeout_s=0.05, idle_timeout_s=0.05)


@pytest.fixture(autouse=True)
def _check_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_server, "_MAX_SWEEP_S", 0.01)


class TestRefusedCalls:
    """Calls that are refused; the connection continues."""

    @pytest.mark.parametrize(
        ("head", "expected"),
        [
            pytest.param([(":method", "GET"), *HEAD[1:]], "3", id="GET"),
            pytest.param([*HEAD[:4], ("content-type", "application/json")], "12", id="JSON"),
            pytest.param(HEAD[:4], "12", id="no content-type"),
            pytest.param([*HEAD, ("grpc-timeout", "soon")], "3", id="a timeout that is none"),
            pytest.param([(":method", "POST"), (":scheme", "http"), (":path", "/no/Method"), *HEAD[3:]], "12", id="no such method"),
            pytest.param([*HEAD, ("x-odd", "\xe4")], "3", id="metadata beyond ASCII"),
        ],
    )
    async def test_on_their_head(self, head: list[tuple[str, str]], expected: str) -> None:
        async with frontend() as it:
            peer = await it.peer()
            await begin(peer, head=head)
            assert await status(peer) == expected
            assert (await peer.wait_for(h2.events.StreamReset)).error_code == h2.errors.ErrorCodes.NO_ERROR
            assert await ask(peer, 3) == infer_message()
            assert it.open_streams == 0

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            pytest.param(b"", "3", id="no message"),
            pytest.param(frame_message(infer_message()) * 2, "3", id="two messages"),
            pytest.param(frame_message(infer_message())[:-1], "3", id="a message cut off"),
            pytest.param(b"\0\0\0", "3", id="a prefix cut off"),
            pytest.param(b"\1" + frame_message(infer_message())[1:], "12", id="compressed with nothing"),
            pytest.param(b"\0\xff\xff\xff\xff", "8", id="a message of 4 GiB"),
        ],
    )
    async def test_on_their_body(self, body: bytes, expected: str) -> None:
        async with frontend() as it:
            peer = await it.peer()
            await begin(peer)
            peer.state.send_data(1, body, end_stream=True)
            await peer.flush()
            assert await status(peer) == expected
            assert await ask(peer, 3) == infer_message()
            assert len(it.upstream.grpc.requests) == 1
            assert it.open_streams == 0

    async def test_too_long_a_message_on_its_prefix_however_much_follows(self) -> None:
        async with frontend() as it:
            peer = await it.peer()
            for stream_id in range(1, 100, 2):
                await begin(peer, stream_id)
                peer.state.send_data(stream_id, b"\0" + (MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"))
                await peer.flush()
                assert await status(peer, stream_id) == "8"
            assert await ask(peer, 101) == infer_message()

    async def test_one_that_was_ended_early_and_goes_on_sending_uses_up_no_window(self) -> None:
        async with frontend() as it:
            peer = await it.connect()
            await peer.send_raw(OPENING + first_headers(1, (*RAW_HEAD, (b"grpc-timeout", b"never"))))
            for _ in range(100):
                await peer.send_raw(data(1, bytes(200_000)))  # 20 MB on a window of 16
            await peer.send_raw(headers(3, RAW_HEAD) + data(3, frame_message(infer_message()), ends=True))
            await until(lambda: it.recorder.outcomes == [Outcome.ANSWERED])


class TestBreaches:
    """Protocol errors end their own connection, with a GOAWAY that says why, and no other one."""

    @pytest.mark.parametrize(
        ("sent", "code"),
        [
            pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", Code.PROTOCOL_ERROR, id="HTTP/1.1"),
            pytest.param(b"\x16\x03\x01\x02\x00", Code.PROTOCOL_ERROR, id="TLS"),
            pytest.param(OPENING + first_headers(2, RAW_HEAD), Code.PROTOCOL_ERROR, id="an even stream"),
            pytest.param(OPENING + data(1, b"x"), Code.PROTOCOL_ERROR, id="data without a head"),
            pytest.param(OPENING + frames.frame_head(frames.DATA, 0, 1, 1 << 20), Code.FRAME_SIZE_ERROR, id="an oversized frame"),
            pytest.param(
                OPENING + first_headers(1, RAW_HEAD) + data(1, b"", ends=True) + data(1, b""),
                None,
                id="data behind the end of what is over",
            ),
            pytest.param(OPENING + frames.window_update(0, frames.MAX_WINDOW_BYTES), Code.FLOW_CONTROL_ERROR, id="a window that overflows"),
            pytest.param(OPENING + frame(frames.HEADERS, frames.END_HEADERS, 1, b"\x80"), Code.COMPRESSION_ERROR, id="an unreadable head"),
            pytest.param(OPENING + frame(frames.PING, 0, 0, bytes(8)) * 6_000, Code.ENHANCE_YOUR_CALM, id="pings"),
            pytest.param(OPENING + frames.settings_frame({}) * 6_000, Code.ENHANCE_YOUR_CALM, id="settings"),
            pytest.param(
                OPENING + frame(frames.HEADERS, 0, 1, b"") + frame(frames.CONTINUATION, 0, 1, b"") * 6_000,
                Code.ENHANCE_YOUR_CALM,
                id="continuations",
            ),
        ],
    )
    async def test_are_told(self, sent: bytes, code: Code | None) -> None:
        async with frontend() as it:
            other = await it.peer()
            assert await ask(other) == infer_message()
            if code is not None:
                assert await goodbye(it, sent) == code
            else:
                await (await it.connect()).send_raw(sent)
            assert await ask(other, 3) == infer_message()

    @pytest.mark.parametrize(
        "head",
        [
            pytest.param(first_headers(1, ((b"x", b"y" * 20_000),)), id="at once"),
            pytest.param(first_headers(1, ((b"x", b""),) * 101), id="of many fields"),
            pytest.param(
                frame(frames.HEADERS, 0, 1, bytes(9_000)) + frame(frames.CONTINUATION, frames.END_HEADERS, 1, bytes(9_000)), id="in pieces"
            ),
        ],
    )
    async def test_an_oversized_head_ends_its_own_call(self, head: bytes) -> None:
        async with frontend() as it:
            peer = await it.connect()
            await peer.send_raw(OPENING + head)
            await peer.reader.readuntil(frames.rst_stream(1, Code.ENHANCE_YOUR_CALM))
            await peer.send_raw(headers(3, RAW_HEAD) + data(3, frame_message(infer_message()), ends=True))
            await until(lambda: it.recorder.outcomes == [Outcome.ANSWERED])

    async def test_streams_opened_and_reset_in_a_row(self) -> None:
        opened = [headers(2 * number + 1, RAW_HEAD) + frames.rst_stream(2 * number + 1, Code.CANCEL) for number in range(6_000)]

        async with frontend() as it:
            first = first_headers(1, RAW_HEAD) + frames.rst_stream(1, Code.CANCEL)
            assert await goodbye(it, OPENING + first + b"".join(opened[1:])) == Code.ENHANCE_YOUR_CALM
            assert it.open_streams == 0

    async def test_calls_in_flight_are_cancelled_in_triton(self) -> None:
        async with frontend() as it:
            it.upstream.grpc.calls.hold()
            peer = await it.connect()
            await peer.send_raw(OPENING + first_headers(1, RAW_HEAD) + data(1, frame_message(infer_message()), ends=True))
            await it.upstream.grpc.calls.arrivals.get()
            await peer.send_raw(data(1, b"x"))
            await it.upstream.grpc.calls.cancelled.wait()
            await until(lambda: it.recorder.outcomes == [Outcome.ABANDONED])
            await peer.reader.read()


class TestTime:
    async def test_one_that_never_says_the_preface_is_cut_off(self) -> None:
        async with frontend(limits=replace(SOON, idle_timeout_s=0)) as it:
            peer = await it.connect()
            await peer.send_raw(frames.PREFACE[:5])
            assert await closed(peer)

    async def test_a_connection_without_calls_is_closed_with_a_goodbye(self) -> None:
        async with frontend(limits=SOON) as it:
            peer = await it.peer()
            assert goaways(await farewell(peer)) == [(frames.MAX_STREAM_ID, Code.NO_ERROR), (0, Code.NO_ERROR)]

    async def test_one_with_calls_that_are_short_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection_server, "_MAX_SWEEP_S", 1_000)

        async with frontend() as it:
            peer, now_s = await it.peer(), asyncio.get_running_loop().time()
            for number in range(5):
                assert await ask(peer, 2 * number + 1) == infer_message()
                (connection,) = it.server._connections
                now_s += 0.9 * LIMITS.idle_timeout_s
                connection.enforce_timeouts(now_s)  # when there is no call, as in most checks
            assert await ask(peer, 11) == infer_message()
            connection.enforce_timeouts(now_s)
            connection.enforce_timeouts(now_s + 1.1 * LIMITS.idle_timeout_s)
            assert goaways(await farewell(peer)) == [(frames.MAX_STREAM_ID, Code.NO_ERROR), (11, Code.NO_ERROR)]

    async def test_one_with_a_call_that_takes_long_stays(self) -> None:
        async with frontend(limits=SOON) as it:
            it.upstream.grpc.calls.hold()
            peer = await it.peer()
            asking = asyncio.get_running_loop().create_task(ask(peer))
            await asyncio.sleep(0.3)
            it.upstream.grpc.calls.may_answer.set()
            assert await asking == infer_message()

    @pytest.mark.parametrize("sent", [b"", b"\0\0", frame_message(infer_message())[:-1], frame_message(bytes(500_000))[:-1]])
    async def test_a_message_that_never_completes_is_refused(self, sent: bytes) -> None:
        async with frontend(limits=SOON) as it:
            peer = await it.peer()
            await begin(peer)
            for at in range(0, len(sent), 16_384):
                peer.state.send_data(1, sent[at : at + 16_384])
                await peer.flush()
                while peer.state.local_flow_control_window(1) < 16_384:
                    await peer.read()
            assert await status(peer) == "4"
            assert it.budget.held_bytes == 0

    async def test_so_is_one_that_comes_byte_by_byte(self) -> None:
        async with frontend(limits=replace(LIMITS, body_timeout_s=0.2)) as it:
            peer = await it.peer()
            await begin(peer)
            peer.state.send_data(1, b"\0" + (500_000).to_bytes(4, "big"))
            async with asyncio.TaskGroup() as tasks:

                async def drip() -> None:
                    for _ in range(1_000):
                        peer.state.send_data(1, b"x")
                        await peer.flush()
                        await asyncio.sleep(0.02)

                dripping = tasks.create_task(drip())
                assert await status(peer) == "4"
                dripping.cancel()

    @pytest.mark.parametrize("method", [INFER, STREAM])
    @pytest.mark.parametrize("window", [pytest.param(0, id="none"), pytest.param(1_000, id="too little")])
    async def test_a_client_that_makes_no_room_for_its_answer_loses_the_call_and_no_other(self, method: str, window: int) -> None:
        async with frontend(limits=replace(SOON, idle_timeout_s=0)) as it:
            peer = await it.peer(settings={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
            peer.reads_on = False
            for stream_id in (1, 3):
                await begin(peer, stream_id, head=[*HEAD[:2], (":path", method), *HEAD[3:]])
                peer.state.send_data(stream_id, frame_message(infer_message(padding=2_000)), end_stream=True)
            await peer.flush()
            if method == STREAM:
                for _ in range(2):
                    (await it.upstream.grpc.streams.get()).put(*[bytes(2_000)] * 3)
            reset = await peer.wait_for(h2.events.StreamReset)
            assert reset.error_code == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
            await until(lambda: (it.open_streams, it.inference.in_flight) == (0, 0))
            peer.state.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 16})
            assert await ask(peer, 5) == infer_message()

    async def test_one_that_makes_room_slowly_gets_all_of_its_answer(self) -> None:
        async with frontend(limits=replace(LIMITS, body_timeout_s=0.2)) as it:
            peer = await it.peer(settings={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 100})
            peer.reads_on = False
            await begin(peer)
            peer.state.send_data(1, frame_message(infer_message(padding=2_000)), end_stream=True)
            await peer.flush()
            for _ in range(25):
                await asyncio.sleep(0.04)
                peer.state.increment_flow_control_window(100, 1)
                await peer.flush()
            assert await answered(peer) == infer_message(padding=2_000)

    async def test_a_message_that_we_hold_back_ourselves_is_not_missed(self) -> None:
        async with frontend(limits=SOON) as it:
            peer = await it.peer()
            await begin(peer, head=[*HEAD[:2], (":path", STREAM), *HEAD[3:]])
            peer.state.send_data(1, frame_message(infer_message()))
            await peer.flush()
            (await it.upstream.grpc.streams.get()).may_send.clear()
            for _ in range(100):
                peer.state.send_data(1, frame_message(infer_message()))
            peer.state.send_data(1, frame_message(infer_message())[:-1])
            await peer.flush()
            await asyncio.sleep(0.3)
            assert it.open_streams == 1

    async def test_a_client_that_reads_nothing_is_cut_off(self) -> None:
        async with frontend(FakeGrpc(answer=lambda _: message_answer(bytes(32 << 20))), limits=SOON) as it:
            peer = await it.connect()
            wide = frames.settings_frame({frames.Setting.INITIAL_WINDOW_SIZE: 1 << 30}) + frames.window_update(0, 1 << 30)
            await peer.send_raw(frames.PREFACE + wide + headers(1, RAW_HEAD) + data(1, frame_message(infer_message()), ends=True))
            await until(lambda: it.recorder.records)
            await until(lambda: not it.server._connections)


class TestRoom:
    """The memory of all connections' bodies together is bounded."""

    async def test_a_large_message_waits_for_room_and_is_then_served(self) -> None:
        async with frontend(budget_bytes=1_000_000) as it:
            it.upstream.grpc.calls.hold()
            message = infer_message(padding=800_000)
            calls = [it.call(INFER, message) for _ in range(3)]
            await it.upstream.grpc.calls.arrivals.get()
            await asyncio.sleep(0.05)
            assert len(it.upstream.grpc.requests) == 1
            assert it.budget.held_bytes > 800_000
            small = it.call(INFER, infer_message())
            await it.upstream.grpc.calls.arrivals.get()
            it.upstream.grpc.calls.may_answer.set()
            assert await small == infer_message()
            for call in calls:
                assert await call == message
            assert it.budget.held_bytes == 0

    async def test_one_that_waits_too_long_is_refused(self) -> None:
        async with frontend(budget_bytes=1_000_000, limits=replace(LIMITS, body_timeout_s=0.1)) as it:
            assert it.budget.try_acquire(900_000)
            error = await it.failure(INFER, infer_message(padding=800_000))
            assert error.code().name == "UNAVAILABLE"
            assert "try again" in error.details()
            it.budget.release(900_000)

    async def test_one_that_leaves_while_it_waits_keeps_nothing(self) -> None:
        async with frontend(budget_bytes=1_000_000) as it:
            assert it.budget.try_acquire(900_000)
            peer = await it.peer()
            await begin(peer)
            peer.state.send_data(1, frame_message(infer_message(padding=800_000))[:16_384])
            await peer.flush()
            await until(lambda: it.budget._bytes._waiting)
            await peer.close()
            await until(lambda: not it.budget._bytes._waiting)
            it.budget.release(900_000)
            assert await it.call(INFER, infer_message(padding=800_000)) == infer_message(padding=800_000)

    @pytest.mark.parametrize("size", [pytest.param(100, id="begun"), pytest.param(60_005, id="complete")])
    async def test_of_calls_that_never_end_small_messages_count_too(self, size: int) -> None:
        async with frontend() as it:
            peer = await it.peer()
            frame = frame_message(bytes(60_000))
            for stream_id in range(1, 201, 2):
                await begin(peer, stream_id)
                for at in range(0, size, 16_000):
                    while peer.state.local_flow_control_window(stream_id) < 16_000:
                        await peer.read()
                    peer.state.send_data(stream_id, frame[at : min(at + 16_000, size)])
                await peer.flush()
            # 69 of them are 4 MiB.
            await until(lambda: it.budget.held_bytes == 31 * len(frame))
            await peer.close()
            await until(lambda: it.budget.held_bytes == 0)

    async def test_a_connection_beyond_the_limit_takes_the_place_of_an_idle_one_of_its_source(self) -> None:
        async with frontend(limits=replace(LIMITS, max_connections=2)) as it:
            first, second = await it.peer(), await it.peer()
            assert await ask(first) == await ask(second) == infer_message()
            third = await it.peer()
            assert await ask(third) == infer_message(), "an idle connection of its source made room"
            assert await closed(first)
            assert await ask(second, 3) == await ask(third, 3) == infer_message()

    async def test_no_connection_beyond_the_limit_is_taken_while_all_have_calls(self) -> None:
        async with frontend(limits=replace(LIMITS, max_connections=2)) as it:
            it.upstream.grpc.calls.hold()
            for peer in (await it.peer(), await it.peer()):
                await begin(peer, 1)
            await until(lambda: it.open_streams == 2)
            assert await closed(await it.connect())
            assert it.open_streams == 2

    async def test_streams_beyond_the_limit_are_refused_and_may_be_tried_again(self) -> None:
        async with frontend() as it:
            it.upstream.grpc.calls.hold()
            peer = await it.connect()
            calls = [
                headers(2 * number + 1, RAW_HEAD) + data(2 * number + 1, frame_message(infer_message()), ends=True)
                for number in range(1_001)
            ]
            await peer.send_raw(frames.PREFACE + frames.settings_frame({}) + b"".join(calls))
            await until(lambda: len(it.upstream.grpc.requests) == 1_000)
            await settle()
            assert len(it.upstream.grpc.requests) == it.open_streams == 1_000


NOISE: list[Callable[[int], bytes]] = [
    lambda n: frame(n % 11, n % 256, n % 7, bytes(n % 40)),
    lambda n: headers(2 * n + 1, RAW_HEAD)[: n % 60 + 1],
    lambda n: bytes([n * 37 % 256]) * (n % 50),
]


@pytest.mark.parametrize("make", NOISE)
async def test_noise_is_survived(make: Callable[[int], bytes]) -> None:
    async with frontend(limits=replace(LIMITS, max_connections=1_000)) as it:
        for number in range(150):
            peer = await it.connect()
            await peer.send_raw(OPENING + make(number) + make(number + 1))
            await peer.close()
        assert await ask(await it.peer()) == infer_message()
