"""Connections of the open loop, before a small server: whole answers, connections used again, and what breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from perf.soak import http_caller
from perf.soak.http_caller import HttpCaller, NoConnection

REQUEST = b"GET / HTTP/1.1\r\n\r\n"
LONG = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfour"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
BROKEN = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfou"
LAST = b"HTTP/1.1 503 \r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


async def asked(answers: list[bytes], use: Callable[[HttpCaller], Awaitable[None]]) -> int:
    """How many connections came; an answer that is empty stays away, and after the last one the server closes."""
    connections, left = 0, iter(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                if not (answer := next(left, LAST)):
                    await reader.read()
                    break
                for part in (answer[:30], answer[30:]):
                    writer.write(part)
                    await asyncio.sleep(0.001)
                if answer in (LAST, BROKEN):
                    break
        except asyncio.IncompleteReadError:
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    caller = HttpCaller(f"{host}:{port}")
    async with server:
        try:
            await use(caller)
        finally:
            caller.close()
    return connections


async def test_an_answer_is_read_to_its_end_and_the_connection_used_again() -> None:
    async def use(caller: HttpCaller) -> None:
        assert [await caller.ask(REQUEST, sendable_s=1.0) for _ in range(2)] == [LONG, CHUNKED]

    assert await asked([LONG, CHUNKED], use) == 1


async def test_after_a_connections_last_answer_there_is_another_one() -> None:
    async def use(caller: HttpCaller) -> None:
        assert [await caller.ask(REQUEST, sendable_s=1.0) for _ in range(2)] == [LAST, LONG]

    assert await asked([LAST, LONG], use) == 2


async def test_who_leaves_closes_his_connection() -> None:
    async def use(caller: HttpCaller) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await caller.ask(REQUEST, sendable_s=1.0)
        assert await caller.ask(REQUEST, sendable_s=1.0) == LONG

    assert await asked([b"", LONG], use) == 2


async def test_a_connection_that_breaks_is_an_error() -> None:
    async def use(caller: HttpCaller) -> None:
        with pytest.raises(ConnectionResetError):
            await caller.ask(REQUEST, sendable_s=1.0)

    assert await asked([BROKEN], use) == 1


async def test_who_finds_no_connection_is_told_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_caller, "_MOST", 1)

    async def use(caller: HttpCaller) -> None:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(caller.ask(REQUEST, sendable_s=1.0))
            await asyncio.sleep(0.02)
            with pytest.raises(NoConnection):
                await caller.ask(REQUEST, sendable_s=0.02)
            second = tasks.create_task(caller.ask(REQUEST, sendable_s=1.0))
            await asyncio.sleep(0.02)
            first.cancel()
        assert second.result() == LONG

    assert await asked([b"", LONG], use) == 2
