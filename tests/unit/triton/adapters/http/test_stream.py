from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from control_plane.core.endpoints import TcpAddress
from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.triton.adapters.http.client import HttpClient
from control_plane.triton.adapters.http.stream import TritonHttpStream
from tests.unit.triton.adapters.scripted_triton import OK, Exchange, Script, ScriptedTriton, scripted_triton

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
REQUEST = HttpRequest(b"POST", b"/v2/models/m/generate_stream", [], b"{}")


@asynccontextmanager
async def pool(script: Script, *, limit: int = 1) -> AsyncIterator[tuple[HttpClient, ScriptedTriton]]:
    """Pool of one connection by default, so that the next request shows whether the connection was given
    back.
    """
    async with scripted_triton(script) as triton:
        http = HttpClient(TcpAddress("127.0.0.1", triton.port), max_connections=limit)
        try:
            yield http, triton
        finally:
            await http.close()
            await triton.wait_until_open(0)


def says(*pieces: bytes) -> Script:
    """Script that sends each piece of the first response by itself; later responses are ordinary."""

    async def script(exchange: Exchange) -> bytes:
        if exchange.number:
            return OK
        for piece in pieces[:-1]:
            exchange.writer.write(piece)
            await asyncio.sleep(0.01)
        return pieces[-1]

    return script


def then_closes(*pieces: bytes) -> Script:
    async def script(exchange: Exchange) -> bytes:
        if exchange.number:
            return OK
        for piece in pieces:
            exchange.writer.write(piece)
        await exchange.writer.drain()
        return b""

    return script


async def open_stream(http: HttpClient, timeout_s: float = 20.0) -> TritonHttpStream:
    answer = await http.stream(REQUEST, timeout_s=timeout_s)
    assert isinstance(answer, TritonHttpStream)
    assert (answer.status, answer.head) == (200, HEAD)
    return answer


async def all_of(stream: TritonHttpStream) -> list[bytes]:
    found = []
    while (piece := await stream.receive()) is not None:
        found.append(piece)
    return found


async def ask(http: HttpClient) -> HttpAnswer:
    return await http.send(REQUEST, timeout_s=5.0)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([HEAD + b"1\r\na\r\n2\r\nbc\r\n" + END], id="at once"),
        pytest.param([HEAD, b"1\r\na\r\n", b"2\r\nbc\r\n", END], id="chunk by chunk"),
        pytest.param([HEAD[:20], HEAD[20:] + b"1", b"\r\na\r", b"\n2\r\nb", b"c\r\n0\r", b"\n\r\n"], id="in pieces that are no chunks"),
    ],
)
async def test_pieces_come_in_order_and_the_connection_is_used_again(pieces: list[bytes]) -> None:
    async with pool(says(*pieces)) as (http, triton):
        stream = await open_stream(http)
        assert await all_of(stream) == [b"a", b"bc"]
        stream.close()
        assert (await ask(http)).body == b"ok"
        assert triton.accepted == 1


async def test_each_piece_is_heard() -> None:
    may_go_on = asyncio.Event()

    async def script(exchange: Exchange) -> bytes:
        exchange.writer.write(HEAD + b"1\r\na\r\n")
        await may_go_on.wait()
        return b"1\r\nb\r\n" + END

    async with pool(script) as (http, _):
        stream = await open_stream(http)
        assert stream.heard_s > 0.0
        stream.heard_s = 0.0
        may_go_on.set()
        assert await all_of(stream) == [b"a", b"b"]
        assert stream.heard_s > 0.0
        stream.close()


async def test_a_whole_answer_is_one() -> None:
    async with pool(says(OK)) as (http, triton):
        answer = await http.stream(REQUEST, timeout_s=5.0)
        assert isinstance(answer, HttpAnswer)
        assert (answer.status, (await ask(http)).body, triton.accepted) == (200, b"ok", 1)


@pytest.mark.parametrize("taken", [0, 1])
async def test_one_that_is_closed_before_its_end_costs_the_connection_and_frees_its_place(taken: int) -> None:
    async with pool(says(HEAD + b"1\r\na\r\n", b"1\r\nb\r\n" * 1000)) as (http, triton):
        stream = await open_stream(http)
        for _ in range(taken):
            await stream.receive()
        stream.close()
        stream.close()
        assert (await ask(http)).body == b"ok"
        assert triton.accepted == 2


@pytest.mark.parametrize("rest", [b"", b"1\r\na\r\n", b"1\r\na\r\n5\r\nab"])
async def test_one_that_breaks_off_says_so_behind_what_came(rest: bytes) -> None:
    async with pool(then_closes(HEAD + rest)) as (http, _):
        stream = await open_stream(http)
        if rest:
            assert await stream.receive() == b"a"
        with pytest.raises(UpstreamUnavailable, match="closed the connection"):
            await stream.receive()
        stream.close()
        assert (await ask(http)).body == b"ok"


@pytest.mark.parametrize("rest", [b"x\r\n", b"1\r\nab\r\n", END + b"x"])
async def test_one_that_cannot_be_read_says_so(rest: bytes) -> None:
    async with pool(says(HEAD + rest)) as (http, triton):
        stream = await open_stream(http)
        with suppress(UpstreamUnavailable):
            await all_of(stream)
        stream.close()
        assert (await ask(http)).body == b"ok"
        assert triton.accepted == 2, "a connection that is out of step was used again"


async def test_a_piece_that_does_not_come_in_time_is_not_waited_for() -> None:
    held = asyncio.Event()

    async def script(exchange: Exchange) -> bytes:
        if exchange.number:
            return OK
        exchange.writer.write(HEAD + b"1\r\na\r\n")
        await held.wait()
        return END

    async with pool(script) as (http, _):
        stream = await open_stream(http, timeout_s=0.2)
        assert await stream.receive() == b"a"
        with pytest.raises(DeadlineExceeded):
            await stream.receive()
        stream.close()
        assert (await ask(http)).body == b"ok"


async def test_what_nobody_takes_is_not_read() -> None:
    sent = 0

    async def script(exchange: Exchange) -> bytes:
        nonlocal sent
        if exchange.number:
            return OK
        exchange.writer.write(HEAD)
        for _ in range(400):
            exchange.writer.write(b"10000\r\n" + bytes(65_536) + b"\r\n")
            await exchange.writer.drain()
            sent += 1
        return END

    async with pool(script) as (http, triton):
        stream = await open_stream(http)
        stuck = await until_still(lambda: sent)
        assert stuck < 300
        assert sum(map(len, await all_of(stream))) == 400 * 65_536
        stream.close()
        assert (await ask(http)).body == b"ok"
        assert triton.accepted == 1


async def until_still(measure: Callable[[], int]) -> int:
    last = -1
    while last != measure():
        last = measure()
        await asyncio.sleep(0.2)
    return last


async def test_who_leaves_while_it_waits_for_a_piece_leaves_nothing_behind() -> None:
    async with pool(says(HEAD + b"1\r\na\r\n", b"")) as (http, _):
        stream = await open_stream(http)
        await stream.receive()
        waiting = asyncio.get_running_loop().create_task(stream.receive())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        stream.close()
        assert (await ask(http)).body == b"ok"


async def test_a_call_that_takes_no_stream_refuses_one() -> None:
    async with pool(says(HEAD + END)) as (http, _):
        with pytest.raises(UpstreamUnavailable, match="chunked"):
            await ask(http)
        assert (await ask(http)).body == b"ok"
