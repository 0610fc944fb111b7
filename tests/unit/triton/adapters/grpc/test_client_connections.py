"""Connections of the gRPC client of Triton: opened, shared, lost and closed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import h2.events
import pytest

from control_plane.core.endpoints import TcpAddress, UnixAddress
from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.infer_call import SendFailure
from control_plane.protocols.grpc import answer_of, frame_message
from control_plane.triton.adapters.grpc.calls import UnaryCall
from control_plane.triton.adapters.grpc.client import GrpcClient
from tests.h2_peer import H2Peer
from tests.unit.protocols.http2.http2_ends import frame
from tests.unit.triton.adapters.fake_grpc_server import never
from tests.unit.triton.adapters.grpc_bench import STREAM_HEAD, UNAVAILABLE, answering, call, scripted, triton


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
        async with scripted(answering) as (client, peers):
            assert {answer.code for answer in await asyncio.gather(*(client.unary(call(), timeout_s=10) for _ in range(20)))} == {0}
            assert len(peers) == 1

    async def test_calls_of_one_turn_go_in_one_write_unless_they_are_alone(self) -> None:
        async with triton() as (client, _):
            assert (await client.unary(call(), timeout_s=10)).code == 0
            (connection,) = client._open
            written = _CountedTransport(connection._transport)
            _put_in_place(connection, written)
            assert (await client.unary(call(), timeout_s=10)).code == 0
            alone = written.writes
            assert {answer.code for answer in await asyncio.gather(*(client.unary(call(), timeout_s=10) for _ in range(20)))} == {0}
            # The first, the nineteen others, and perhaps a few acknowledgements.
            assert alone < written.writes < alone + 15

    async def test_after_two_large_reads_the_socket_is_read_again_in_the_next_turn(self) -> None:
        """uvloop reads a socket again and again, 8 MB in a turn, as long as it is not told to pause."""
        async with triton() as (client, _):
            assert (await client.unary(call(), timeout_s=10)).code == 0
            (connection,) = client._open
            transport, unknown = connection._transport, frame(0xFA, 0, 0, bytes(100_000))
            assert transport is not None
            for _ in range(3):
                for data, is_read_on in ((unknown[:100], True), (unknown[100:], True), (unknown[:-1], False)):
                    connection.data_received(data)
                    assert transport.is_reading() is is_read_on
                await asyncio.sleep(0)
                assert transport.is_reading()
                connection.data_received(unknown[-1:])
                assert transport.is_reading()


class TestKeepAlive:
    async def test_a_connection_that_says_nothing_is_closed_and_one_that_answers_pings_is_kept(self) -> None:
        async def slow(peer: H2Peer) -> None:
            await peer.start()
            while True:
                await peer.read()
                await peer.flush()

        async with scripted(slow) as (client, peers), asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(client.unary(call(), timeout_s=30))
            for _ in range(20):
                client.keep_alive(0.4)
                await asyncio.sleep(0.05)
            assert not asking.done(), "its server answers pings, and takes long over the call"
            pings = [each for each in peers[0].events if isinstance(each, h2.events.PingReceived)]
            assert 1 < len(pings) < 7, "a ping for each half of that time in which nothing came"
            asking.cancel()

    async def test_calls_on_one_that_says_nothing_are_lost_at_once_and_the_next_one_finds_another(self) -> None:
        async def first_is_silent(peer: H2Peer) -> None:
            if len(peers) > 1:
                await answering(peer)

        async with scripted(first_is_silent) as (client, peers):
            async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
                lost = tasks.create_task(client.unary(call(), timeout_s=30))
                await asyncio.sleep(0.1)
                while not lost.done():
                    client.keep_alive(0.2)
                    await asyncio.sleep(0.05)
            assert (lost.result().code, lost.result().loss) == (UNAVAILABLE, SendFailure.CONNECTION_LOST)
            assert "it says nothing" in lost.result().details
            assert (await client.unary(call(), timeout_s=10)).code == 0


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
                _put_in_place(each, _ClosedTransport())
            yield client
            for each, transport in real:
                transport.abort()  # type: ignore[union-attr]
                client._open.discard(each)

    async def test_a_call_was_not_sent_and_the_next_one_connects(self) -> None:
        async with self.closed_unnoticed() as client:
            answer = await client.unary(call(), timeout_s=10)
            assert (answer.code, answer.loss) == (UNAVAILABLE, SendFailure.NOT_SENT)
            assert (await client.unary(call(), timeout_s=10)).code == 0

    async def test_none_of_the_calls_of_one_turn_was_sent(self) -> None:
        async with self.closed_unnoticed() as client:
            (small,) = (each for each in client._open if each.lane.value == "small")
            small.state.open(UnaryCall(small, small.loop, 0.0))  # another call in flight, so that the next ones wait for each other
            answers = await asyncio.gather(*(client.unary(call(), timeout_s=10) for _ in range(3)))
            assert {(answer.code, answer.loss) for answer in answers} == {(UNAVAILABLE, SendFailure.NOT_SENT)}

    async def test_a_stream_was_not_opened_and_the_next_one_is(self) -> None:
        async with self.closed_unnoticed() as client:
            with pytest.raises(UpstreamUnavailable, match="closed the connection") as caught:
                await client.open_stream(STREAM_HEAD, timeout_s=10)
            assert caught.value.is_not_sent
            (await client.open_stream(STREAM_HEAD, timeout_s=10)).cancel()

    async def test_a_message_of_an_open_stream_ends_it(self) -> None:
        async with triton(stream=_nothing) as (client, _):
            it = await client.open_stream(STREAM_HEAD, timeout_s=10)
            transport = it.connection._transport  # type: ignore[attr-defined]
            _put_in_place(it.connection, _ClosedTransport())
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


def _put_in_place(connection: Any, transport: Any) -> None:
    connection._transport = connection._writer._transport = transport


class _CountedTransport:
    """A transport whose writes are counted."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.writes = 0

    def write(self, data: bytes) -> None:
        self.writes += 1
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


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
            (connection,) = client._open
            while len(connection.state.streams) < 2 or connection._unwritten:  # until both are sent, and so are lost with it
                await asyncio.sleep(0.001)
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
