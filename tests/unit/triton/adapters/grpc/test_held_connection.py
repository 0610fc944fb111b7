from __future__ import annotations

import asyncio

import pytest

from control_plane.core.endpoints import TcpAddress
from control_plane.triton.adapters.grpc.held_connection import HeldConnection
from tests.unit.triton.adapters.fake_grpc_server import FakeServer, echo, serving


async def test_it_stays_while_the_server_does_and_is_lost_with_it() -> None:
    async with serving(echo) as server:
        held = await HeldConnection.open(TcpAddress("127.0.0.1", server.port))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await held.lost()
        assert not held.is_lost
    async with asyncio.timeout(20.0):
        await held.lost()


async def test_it_does_not_hold_up_a_server_that_drains() -> None:
    server = FakeServer(echo)
    await server.start()
    held = await HeldConnection.open(TcpAddress("127.0.0.1", server.port))
    await asyncio.sleep(0.2)  # the handshake is done
    async with asyncio.timeout(20.0):
        await server.stop(grace_s=60.0)
        await held.lost()


async def test_closing_it_ends_the_wait_and_may_be_repeated() -> None:
    async with serving(echo) as server:
        held = await HeldConnection.open(TcpAddress("127.0.0.1", server.port))
        held.close()
        held.close()
        await held.lost()


async def test_one_that_speaks_another_protocol_is_let_go() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    held = await HeldConnection.open(TcpAddress("127.0.0.1", server.sockets[0].getsockname()[1]))
    async with asyncio.timeout(20.0):
        await held.lost()
    server.close()


async def test_nobody_there_is_an_error() -> None:
    async with serving(echo) as server:
        port = server.port
    with pytest.raises(OSError):
        await HeldConnection.open(TcpAddress("127.0.0.1", port))
