"""gRPC client of Triton, against grpc's own server in Triton's place; `test_grpc_servers` has other
servers.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import h2.errors
import h2.events
import h2.settings
import pytest

from control_plane.core.endpoints import TcpAddress, UnixAddress
from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.infer_call import SendFailure
from control_plane.protocols.grpc import PREFIX_BYTES, GrpcAnswer, GrpcHead, answer_of, frame_message
from control_plane.protocols.header_forwarding import HeaderForwarding
from control_plane.triton.adapters.grpc import GrpcClient
from control_plane.triton.adapters.grpc_calls import TritonStream
from control_plane.triton.ports import GrpcCall
from tests.aio import settle
from tests.fakes.slot import FakeSlot
from tests.h2_peer import H2Peer
from tests.unit.triton.adapters.fake_grpc_server import FakeServer, Handler, StreamHandler, aborting, echo, never, serving

CONTENT_TYPE = (b"content-type", b"application/grpc")
HEAD = GrpcHead("/any.Service/Method", (CONTENT_TYPE, (b"x-trace", b"7"), (b"x-bin", b"AP8=")))
STREAM_HEAD = GrpcHead("/any.Service/Stream", (CONTENT_TYPE,))
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]
DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


def call(message: bytes = b"message", *, head: GrpcHead = HEAD) -> GrpcCall:
    return GrpcCall(head, frame_message(message))


@asynccontextmanager
async def triton(handle: Handler = echo, stream: StreamHandler | None = None) -> AsyncIterator[tuple[GrpcClient, FakeServer]]:
    async with serving(handle, stream) as fake:
        client = GrpcClient(TcpAddress("127.0.0.1", fake.port), forwarding=HeaderForwarding.of("^x-"))
        try:
            yield client, fake
        finally:
            await client.close()


class TestUnary:
    async def test_bytes_and_metadata_travel_as_they_are(self) -> None:
        async with triton() as (client, fake):
            answer = await client.unary(call(), timeout_s=10)
            assert (answer.code, answer.message) == (0, b"message")
            method, message, context = await fake.arrivals.get()
            assert (method, message) == ("/any.Service/Method", b"message")
            assert {("x-trace", "7"), ("x-bin", b"\x00\xff")} <= {tuple(pair) for pair in context.invocation_metadata()}

    @pytest.mark.parametrize(
        ("method", "shows"), [("RepositoryIndex", True), ("RepositoryModelLoad", False), ("ModelInfer", False), ("ServerLive", False)]
    )
    async def test_shows_triton_the_secret_for_its_index_only(self, method: str, shows: bool) -> None:
        async with serving(echo) as fake:
            client = GrpcClient(TcpAddress("127.0.0.1", fake.port), control_secret="s3cret")
            head = GrpcHead(f"/inference.GRPCInferenceService/{method}", (CONTENT_TYPE,))
            await client.unary(call(head=head), timeout_s=10)
            await client.close()
            metadata = {tuple(pair) for pair in (await fake.arrivals.get())[2].invocation_metadata()}
            assert (("triton-grpc-protocol-tidegate-control", "s3cret") in metadata) is shows

    @pytest.mark.parametrize("size", [0, 1, 1 << 14, 1 << 18, (1 << 18) + 1, 12 << 20])
    async def test_a_message_of_any_size_there_and_back(self, size: int) -> None:
        message = (bytes(range(251)) * (size // 251 + 1))[:size]

        async with triton() as (client, _):
            answer = await client.unary(call(message), timeout_s=20)
            assert answer.message == message

    async def test_many_at_once_each_get_their_own_answer(self) -> None:
        async with triton() as (client, _):
            messages = [b"%d" % number * (number * 37 % 9_000) for number in range(300)]
            answers = await asyncio.gather(*(client.unary(call(message), timeout_s=20) for message in messages))
            assert [answer.message for answer in answers] == messages
            assert len(client._open) == 1

    @pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
    async def test_any_status_is_an_answer_with_its_text_and_trailing_metadata(self, code: grpc.StatusCode) -> None:
        async with triton(aborting(code, "why \u00e4", (("x-a", "1"), ("x-b-bin", b"\x00\xff")))) as (client, _):
            answer = await client.unary(call(), timeout_s=10)
            assert (answer.code, answer.details, answer.body) == (code.value[0], "why \u00e4", ())
            assert {(b"x-a", b"1"), (b"x-b-bin", b"AP8")} <= {(name, value.rstrip(b"=")) for name, value in answer.trailers}

    async def test_initial_metadata_comes_with_the_answer(self) -> None:
        async def handle(message: bytes, context: Any) -> bytes:
            await context.send_initial_metadata((("x-early", "1"),))
            return message

        async with triton(handle) as (client, _):
            assert (b"x-early", b"1") in (await client.unary(call(), timeout_s=10)).headers

    async def test_the_deadline_is_an_answer_and_cancels_in_triton(self) -> None:
        async with triton(never) as (client, fake):
            answer = await client.unary(call(), timeout_s=0.2)
            assert (answer.code, answer.details) == (DEADLINE_EXCEEDED, "Deadline Exceeded")
            assert answer.loss is SendFailure.TIMED_OUT
            await fake.cancelled.wait()

    @pytest.mark.parametrize(("own_s", "is_told"), [(None, False), (30.0, True)])
    async def test_a_callers_own_deadline_is_told_to_triton(self, own_s: float | None, is_told: bool) -> None:
        async with triton() as (client, fake):
            await client.unary(call(head=GrpcHead("/m", (CONTENT_TYPE,), own_s)), timeout_s=20)
            _, _, context = await fake.arrivals.get()
            assert (context.time_remaining() is not None and context.time_remaining() < 21) == is_told

    async def test_cancelling_cancels_the_call_in_triton(self) -> None:
        async with triton(never) as (client, fake):
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(client.unary(call(), timeout_s=30))
                await fake.arrivals.get()
                task.cancel()
            assert task.cancelled()
            await fake.cancelled.wait()
            fake.handle = echo
            assert (await client.unary(call(), timeout_s=10)).code == 0

    async def test_a_call_that_is_answered_as_its_caller_leaves_is_let_be(self) -> None:
        """Triton 24.10 sometimes crashes when a cancellation meets the response."""
        may_answer = asyncio.Event()

        async def handle(message: bytes, context: Any) -> bytes:
            await may_answer.wait()
            return message

        async with triton(handle) as (client, fake):
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(client.unary(call(), timeout_s=30))
                await fake.arrivals.get()
                task.cancel()
                may_answer.set()
            assert (await client.unary(call(), timeout_s=10)).code == 0
            await asyncio.sleep(0.1)
            assert not fake.cancelled.is_set()

    @pytest.mark.parametrize("how", ["cancelled", "late"])
    async def test_the_slot_of_a_caller_that_left_is_kept_until_triton_answers(self, how: str) -> None:
        may_answer, slot = asyncio.Event(), FakeSlot()

        async def handle(message: bytes, context: Any) -> bytes:
            await may_answer.wait()
            return message

        async with triton(handle) as (client, fake):
            async with asyncio.TaskGroup() as tasks:
                # A deadline of its own, which Triton would end the call at.
                asked = call(head=GrpcHead("/m", (CONTENT_TYPE,), 0.2))
                task = tasks.create_task(client.unary(asked, timeout_s=0.2 if how == "late" else 20.0, slot=slot))
                await fake.arrivals.get()
                if how == "cancelled":
                    task.cancel()
                else:
                    assert (await task).code == DEADLINE_EXCEEDED
            await asyncio.sleep(0.2)
            assert (slot.kept, fake.cancelled.is_set()) == (1, False)
            may_answer.set()
            await slot.free.wait()
            assert not fake.cancelled.is_set()

    async def test_no_longer_than_for_a_while_and_then_it_is_cancelled(self) -> None:
        slot = FakeSlot()
        async with triton(never) as (client, fake):
            assert (await client.unary(call(), timeout_s=0.1, slot=slot)).loss is SendFailure.TIMED_OUT
            await slot.free.wait()
            await fake.cancelled.wait()
            assert slot.kept == 0

    async def test_a_connection_that_breaks_ends_it(self) -> None:
        slot = FakeSlot()
        async with triton(never) as (client, _):
            await client.unary(call(), timeout_s=0.1, slot=slot)
            assert slot.kept == 1
            await client.close()
            await slot.free.wait()

    async def test_a_large_message_does_not_hold_up_small_ones(self) -> None:
        async with triton() as (client, _):
            async with asyncio.TaskGroup() as tasks:
                large = [tasks.create_task(client.unary(call(bytes(4 << 20)), timeout_s=20)) for _ in range(3)]
                assert (await client.unary(call(), timeout_s=10)).code == 0
            assert [each.result().code for each in large] == [0] * 3
            assert len(client._open) == 2


class TestConnections:
    async def test_nobody_there_is_an_answer(self) -> None:
        client = GrpcClient(TcpAddress("127.0.0.1", 1))
        answer = await client.unary(call(), timeout_s=5)
        assert answer.code == UNAVAILABLE
        assert "cannot connect to Triton at 127.0.0.1:1: " in answer.details
        assert answer.loss is SendFailure.NOT_SENT
        with pytest.raises(UpstreamUnavailable, match="cannot connect"):
            await client.open_stream(STREAM_HEAD, timeout_s=5)
        await client.close()

    async def test_a_triton_that_starts_again_is_reached_by_the_next_call(self) -> None:
        async with triton() as (client, fake):
            assert (await client.unary(call(), timeout_s=10)).code == 0
            await fake.stop()
            assert (await client.unary(call(), timeout_s=10)).code == UNAVAILABLE
            await fake.start(fake.port)
            assert (await client.unary(call(), timeout_s=10)).code == 0

    async def test_closing_fails_what_is_in_flight_and_all_after_it(self) -> None:
        async with triton(never) as (client, fake):
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(client.unary(call(), timeout_s=30))
                await fake.arrivals.get()
                await client.close()
            assert (task.result().code, task.result().loss) == (UNAVAILABLE, SendFailure.CONNECTION_LOST)
            after = await client.unary(call(), timeout_s=1)
            assert (after.code, after.loss) == (UNAVAILABLE, SendFailure.NOT_SENT)
            with pytest.raises(UpstreamUnavailable, match="have been closed"):
                await client.open_stream(STREAM_HEAD, timeout_s=1)

    async def test_first_calls_that_come_together_share_one_connection(self) -> None:
        async with scripted(_answering) as (client, peers):
            assert {answer.code for answer in await asyncio.gather(*(client.unary(call(), timeout_s=10) for _ in range(20)))} == {0}
            assert len(peers) == 1


class TestFailedWrites:
    """Nothing of such a call was sent, so it may go elsewhere, and the connection is used no more."""

    @asynccontextmanager
    async def closed_unnoticed(self) -> AsyncIterator[GrpcClient]:
        """A client whose connection uvloop has closed without calling connection_lost."""
        async with triton(stream=_nothing) as (client, _):
            (await client.open_stream(STREAM_HEAD, timeout_s=10)).half_close()
            assert (await client.unary(call(), timeout_s=10)).code == 0
            real = [(each, each._transport) for each in client._open]
            for each, _ in real:
                each._transport = _ClosedTransport()  # type: ignore[assignment]
            yield client
            for each, transport in real:
                transport.abort()  # type: ignore[union-attr]
                client._open.discard(each)

    async def test_a_call_was_not_sent_and_the_next_one_connects(self) -> None:
        async with self.closed_unnoticed() as client:
            answer = await client.unary(call(), timeout_s=10)
            assert (answer.code, answer.loss) == (UNAVAILABLE, SendFailure.NOT_SENT)
            assert (await client.unary(call(), timeout_s=10)).code == 0

    async def test_a_stream_was_not_opened_and_the_next_one_is(self) -> None:
        async with self.closed_unnoticed() as client:
            with pytest.raises(UpstreamUnavailable, match="closed the connection") as caught:
                await client.open_stream(STREAM_HEAD, timeout_s=10)
            assert caught.value.is_not_sent
            (await client.open_stream(STREAM_HEAD, timeout_s=10)).cancel()

    async def test_a_message_of_an_open_stream_ends_it(self) -> None:
        async with triton(stream=_nothing) as (client, _):
            it = await client.open_stream(STREAM_HEAD, timeout_s=10)
            transport, it.connection._transport = it.connection._transport, _ClosedTransport()  # type: ignore[assignment]
            await it.send(frame_message(b"message"))
            assert await it.receive() is None
            assert answer_of(it.headers, (), it.trailers).code == UNAVAILABLE
            transport.abort()  # type: ignore[union-attr]

    async def test_a_connection_that_is_being_closed_drops_what_it_is_given(self) -> None:
        async with triton() as (client, _):
            assert (await client.unary(call(), timeout_s=10)).code == 0
            next(iter(client._open)).close()
            answer = await client.unary(call(), timeout_s=10)
            assert (answer.code, answer.loss) == (UNAVAILABLE, SendFailure.NOT_SENT)


class _ClosedTransport:
    """What uvloop leaves of a transport that it has closed."""

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    writelines = write


async def _nothing(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for message in messages:
        yield message


class TestSlowConnecting:
    """The queue of a Unix socket is full: connecting takes until the listener accepts."""

    @asynccontextmanager
    async def full_queue(self, tmp_path: Path) -> AsyncIterator[tuple[GrpcClient, socket.socket]]:
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
            listener.bind(str(tmp_path / "s"))
            listener.listen(0)
            listener.settimeout(0)
            first.connect(str(tmp_path / "s"))
            client = GrpcClient(UnixAddress(str(tmp_path / "s")))
            yield client, listener
            await client.close()

    async def test_a_caller_that_has_no_more_time_leaves_the_connection_to_others(self, tmp_path: Path) -> None:
        async with self.full_queue(tmp_path) as (client, listener):
            answer = await client.unary(call(), timeout_s=0.02)
            assert (answer.code, answer.loss) == (UNAVAILABLE, SendFailure.NOT_SENT)
            listener.accept()[0].close()
            while not client._open:
                await asyncio.sleep(0.001)
            with listener.accept()[0]:
                pass

    async def test_callers_that_wait_share_one_attempt(self, tmp_path: Path) -> None:
        async with self.full_queue(tmp_path) as (client, listener), asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(client.unary(call(), timeout_s=seconds)) for seconds in (0.02, 30, 30)]
            await asyncio.wait(calls[:1])
            listener.accept()[0].close()
            while not client._open:
                await asyncio.sleep(0.001)
            accepted = listener.accept()[0]
            with pytest.raises(BlockingIOError):
                listener.accept()
            accepted.close()
            await asyncio.wait(calls)
            assert [each.result().loss for each in calls] == [SendFailure.NOT_SENT, *[SendFailure.CONNECTION_LOST] * 2]

    async def test_closing_ends_the_attempt(self, tmp_path: Path) -> None:
        async with self.full_queue(tmp_path) as (client, _), asyncio.TaskGroup() as tasks:
            waits = tasks.create_task(client.unary(call(), timeout_s=30))
            await asyncio.sleep(0.02)
            await client.close()
            answer = await waits
            assert (answer.code, answer.loss) == (UNAVAILABLE, SendFailure.NOT_SENT)
            assert "have been closed" in answer.details

    async def test_an_attempt_that_fails_when_nobody_waits_any_more_is_no_error(self, tmp_path: Path) -> None:
        async with self.full_queue(tmp_path) as (client, _):
            await client.unary(call(), timeout_s=0.02)
            (tmp_path / "s").unlink()
            while client._connecting:
                await asyncio.sleep(0.001)
            assert "No such file" in (await client.unary(call(), timeout_s=10)).details


class TestStreams:
    async def test_messages_both_ways(self) -> None:
        async def stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for message in messages:
                yield message
                yield message[::-1]

        async with triton(stream=stream) as (client, _):
            it = await client.open_stream(STREAM_HEAD, timeout_s=10)
            for message in (b"", b"ab", bytes(1 << 20)):
                await it.send(frame_message(message))
                assert [await received(it), await received(it)] == [message, message[::-1]]
            it.half_close()
            assert await it.receive() is None
            assert answer_of(it.headers, (), it.trailers).code == 0
            assert (b":status", b"200") in it.headers

    async def test_a_status_ends_it_before_its_caller_has_finished(self) -> None:
        async def stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            yield b"one"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "enough")

        async with triton(stream=stream) as (client, _):
            it = await client.open_stream(STREAM_HEAD, timeout_s=10)
            assert await received(it) == b"one"
            assert await it.receive() is None
            await asyncio.sleep(0.05)  # what grpc's server sends behind the status changes nothing
            answer = answer_of(it.headers, (), it.trailers)
            assert (answer.code, answer.details) == (9, "enough")
            await it.send(frame_message(b"too late"))
            it.half_close()
            it.cancel()
            assert not any(each.state.streams for each in client._open)

    async def test_cancelling_ends_it_in_triton(self) -> None:
        async def stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            yield b"one"
            await asyncio.Event().wait()

        async with triton(stream=stream) as (client, fake):
            it = await client.open_stream(STREAM_HEAD, timeout_s=10)
            assert await received(it) == b"one"
            it.cancel()
            it.cancel()
            await fake.cancelled.wait()
            assert await it.receive() is None

    async def test_one_that_ends_by_itself_is_not_cancelled(self) -> None:
        """Triton 24.10 sometimes crashes when a stream is cancelled while it sends responses on it."""
        ended_well = asyncio.Event()

        async def stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            yield b"one"
            async for _ in messages:
                pass
            yield b"two"
            ended_well.set()

        async with triton(stream=stream) as (client, fake):
            it = await client.open_stream(STREAM_HEAD, timeout_s=10)
            assert await received(it) == b"one"
            it.cancel()
            await ended_well.wait()
            while any(each.state.streams for each in client._open):
                await asyncio.sleep(0)
            assert not fake.cancelled.is_set()

    async def test_a_reader_that_is_slow_holds_triton_back_and_nobody_else(self) -> None:
        sent = 0

        async def stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            nonlocal sent
            for _ in range(200):
                yield bytes(1 << 18)
                sent += 1

        async with triton(stream=stream) as (client, _):
            it = await client.open_stream(STREAM_HEAD, timeout_s=10)
            other = await client.open_stream(GrpcHead("/other/Stream", (CONTENT_TYPE,)), timeout_s=10)
            before = -1
            while sent != before:
                before = sent
                await asyncio.sleep(0.2)
            assert sent < 150
            assert (await client.unary(call(bytes(1 << 20)), timeout_s=10)).code == 0
            for each in (it, other):
                for _ in range(200):
                    assert len(await received(each)) == 1 << 18
                assert await each.receive() is None

    async def test_they_share_no_connection_with_unary_calls(self) -> None:
        async def stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for message in messages:
                yield message

        async with triton(stream=stream) as (client, _):
            streams = [await client.open_stream(STREAM_HEAD, timeout_s=10) for _ in range(2)]
            assert len(client._open) == 1
            for message in (b"small", bytes(1 << 19)):
                assert (await client.unary(call(message), timeout_s=10)).message == message
            assert len(client._open) == 3  # what slow readers leave waiting fills a window that no unary call needs
            for each in streams:
                each.half_close()
                assert await each.receive() is None

    async def test_a_triton_that_does_not_read_holds_the_sender_back(self) -> None:
        may_read = asyncio.Event()

        async def stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            yield b"begun"
            await may_read.wait()
            count = 0
            async for _ in messages:
                count += 1
            yield b"%d" % count

        async with triton(stream=stream) as (client, _):
            it = await client.open_stream(STREAM_HEAD, timeout_s=10)
            await received(it)
            sent = 0

            async def send() -> None:
                nonlocal sent
                for _ in range(100):
                    await it.send(frame_message(bytes(1 << 20)))
                    sent += 1
                it.half_close()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(send())
                before = -1
                while sent != before:
                    before = sent
                    await asyncio.sleep(0.2)
                assert sent < 90
                may_read.set()
                assert await received(it) == b"100"

    async def test_a_lost_connection_ends_it_as_unavailable(self) -> None:
        async with scripted(_greeting) as (client, peers):
            it = await client.open_stream(STREAM_HEAD, timeout_s=10)
            await settle()
            await peers[0].wait_for(h2.events.RequestReceived)
            await peers[0].close()
            assert await it.receive() is None
            answer = answer_of(it.headers, (), it.trailers)
            assert (answer.code, answer.details) == (UNAVAILABLE, "Triton closed the connection before it answered")


Serve = Callable[[H2Peer], Awaitable[None]]
GRPC_ANSWER = [(":status", "200"), ("content-type", "application/grpc")]


@asynccontextmanager
async def scripted(serve: Serve) -> AsyncIterator[tuple[GrpcClient, list[H2Peer]]]:
    """Run a server that calls `serve` for each connection; it ends with the context."""
    peers: list[H2Peer] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(H2Peer(reader, writer, is_client=False))
        try:
            await serve(peers[-1])
        except ConnectionError:
            writer.transport.abort()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    client = GrpcClient(TcpAddress("127.0.0.1", server.sockets[0].getsockname()[1]))
    try:
        yield client, peers
    finally:
        await client.close()
        server.close()
        for peer in peers:
            await peer.close()
        await settle()


async def _greeting(peer: H2Peer) -> None:
    await peer.start()


async def _answering(peer: H2Peer) -> None:
    await peer.start()
    while True:
        await answer_next(peer)


async def answer_next(peer: H2Peer) -> None:
    """Answer the next complete call with a message of one byte."""
    ended = await peer.wait_for(h2.events.StreamEnded)
    peer.state.send_headers(ended.stream_id, GRPC_ANSWER)
    peer.state.send_data(ended.stream_id, frame_message(b"1"))
    peer.state.send_headers(ended.stream_id, [("grpc-status", "0")], end_stream=True)
    await peer.flush()


async def received(stream: TritonStream) -> bytes:
    frame = await stream.receive()
    assert frame is not None
    return bytes(frame[PREFIX_BYTES:])


def test_an_answers_message_has_no_prefix() -> None:
    assert GrpcAnswer(0, (), (b"\0\0\0\0\1", b"x"), ()).message == b"x"
