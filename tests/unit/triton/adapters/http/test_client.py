from __future__ import annotations

import asyncio
import re
import socket
from typing import Any

import pytest

from control_plane.core.endpoints import TcpAddress
from control_plane.core.errors import UpstreamUnavailable
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.triton.adapters.http.client import HttpClient
from control_plane.triton.adapters.http.connection import HttpConnection
from tests.aio import settle
from tests.fakes.slot import FakeSlot
from tests.unit.frontends.frontend_ends import Transport
from tests.unit.triton.adapters.http_bench import REQUEST, TRACE, Gate, failure, pool, send
from tests.unit.triton.adapters.scripted_triton import OK, Exchange, answer_ok, scripted_triton


class TestExchange:
    async def test_sends_the_request_and_returns_the_answer_as_they_are(self) -> None:
        async with pool() as (http, triton):
            assert await send(http) == HttpAnswer(200, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"ok")
            host = f"Host: 127.0.0.1:{triton.port}\r\n".encode()
            expected = b"POST /v2/models/m/infer HTTP/1.1\r\n" + host + b"X-Trace: 7\r\nContent-Length: 4\r\n\r\nbody"
            assert triton.exchanges[0].request == expected

    @pytest.mark.parametrize(
        ("target", "shows"),
        [
            (b"/v2/repository/index", True),
            (b"/v2/repository/any/index", True),
            (b"/v2/repository/index?x=/models", True),
            (b"/v2/repository/any/models/m/load", True),
            (b"/v2/models/index", False),
            (b"/v2/models/m/infer", False),
        ],
    )
    async def test_shows_triton_the_secret_for_its_repository_only(self, target: bytes, shows: bool) -> None:
        async with scripted_triton(answer_ok) as triton:
            address = TcpAddress("127.0.0.1", triton.port)
            http = HttpClient(address, max_connections=1, control_secret="s3cret", forwarding=TRACE)
            await http.send(HttpRequest(b"POST", target, [(b"X-Trace", b"7")], b"body"), timeout_s=20)
            await http.close()
            await triton.wait_until_open(0)
            assert (b"\r\ntidegate-control: s3cret\r\nX-Trace: 7\r\n" in triton.exchanges[0].request) is shows
            assert (b"s3cret" in triton.exchanges[0].request) is shows

    @pytest.mark.parametrize("tells", [True, False])
    async def test_the_time_left_is_told_where_the_slots_model_wants_it(self, tells: bool) -> None:
        async with pool() as (http, triton):
            await http.send(REQUEST, timeout_s=20, slot=FakeSlot(tells_time_left=tells))
            await send(http)
            told = re.findall(rb"\r\ntidegate-time-left-ms: (\d+)\r\n", triton.exchanges[0].request)
            assert [19_000 < int(each) <= 20_000 for each in told] == [True] * tells
            assert b"time-left" not in triton.exchanges[1].request

    async def test_an_answer_in_pieces(self) -> None:
        async def piecewise(exchange: Exchange) -> bytes:
            for byte in OK[:-1]:
                exchange.writer.write(bytes([byte]))
                await asyncio.sleep(0)
            return OK[-1:]

        async with pool(piecewise) as (http, _):
            assert (await send(http)).body == b"ok"

    async def test_megabytes_both_ways(self) -> None:
        async def back(exchange: Exchange) -> bytes:
            body = exchange.request.partition(b"\r\n\r\n")[2]
            return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

        body = bytes(range(256)) * 20_000
        async with pool(back) as (http, _):
            assert (await http.send(HttpRequest(b"POST", b"/v2", [], body), timeout_s=20)).body == body

    async def test_of_a_large_body_a_piece_is_written_in_a_turn_and_only_where_the_socket_takes_it(self) -> None:
        http, transport = HttpClient(TcpAddress("127.0.0.1", 1), max_connections=1), Transport()
        connection, body = HttpConnection(http), bytearray(range(256)) * 6_000
        connection.connection_made(transport)
        answer = connection.begin([b"head", body], 1e9, slot=None, takes_stream=False)
        at = len(transport.written)
        assert at == 256 * 1024
        for _ in range(2):
            await asyncio.sleep(0)
            assert len(transport.written) - at == 256 * 1024
            at = len(transport.written)
        connection.pause_writing()
        await settle()
        assert len(transport.written) == at
        connection.resume_writing()
        await settle()
        assert transport.written == b"head" + body
        body.clear()  # it is not kept
        connection.data_received(OK)
        assert ((await answer).body, connection.is_reusable) == (b"ok", True)

    async def test_of_a_large_answer_one_read_is_made_in_a_turn(self) -> None:
        http, transport = HttpClient(TcpAddress("127.0.0.1", 1), max_connections=1), Transport()
        connection = HttpConnection(http)
        connection.connection_made(transport)
        answer = connection.begin([b"head"], 1e9, slot=None, takes_stream=False)
        connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n")
        assert not transport.is_paused
        for _ in range(2):
            connection.data_received(bytes(100_000))
            assert transport.is_paused
            await asyncio.sleep(0)
            assert not transport.is_paused
        connection.data_received(bytes(100_000))
        assert (len((await answer).body), transport.is_paused, connection.is_reusable) == (300_000, False, True)

    async def test_a_connection_answered_before_its_request_was_written_is_not_used_again(self) -> None:
        http, transport = HttpClient(TcpAddress("127.0.0.1", 1), max_connections=1), Transport()
        connection = HttpConnection(http)
        connection.connection_made(transport)
        answer = connection.begin([b"head", bytes(2**20)], 1e9, slot=None, takes_stream=False)
        connection.data_received(OK)
        assert ((await answer).body, connection.is_reusable) == (b"ok", False)
        connection.connection_lost(None)
        written = len(transport.written)
        await settle()
        assert len(transport.written) == written

    async def test_an_ipv6_address_is_bracketed_in_host(self) -> None:
        async with scripted_triton(host="::1") as triton:
            http = HttpClient(TcpAddress("::1", triton.port), max_connections=1)
            await send(http)
            assert f"\r\nHost: [::1]:{triton.port}\r\n".encode() in triton.exchanges[0].request
            await http.close()


class TestReuse:
    async def test_one_connection_serves_one_request_after_the_other(self) -> None:
        async with pool() as (http, triton):
            for _ in range(5):
                await send(http)
            assert triton.accepted == 1

    async def test_large_json_takes_one_connection_and_those_that_it_holds_up_are_taken_last(self) -> None:
        """Triton's HTTP threads parse JSON, each for all its connections, and which those are it does not say."""
        gate, later_s, loop = Gate(), 0.0, asyncio.get_running_loop()
        async with scripted_triton(gate) as triton:
            http = HttpClient(TcpAddress("127.0.0.1", triton.port), max_connections=10, now_s=lambda: loop.time() + later_s)

            async def sent(body: bytes = b"{}", *fields: tuple[bytes, bytes]) -> tuple[asyncio.Task[HttpAnswer], Exchange]:
                request = HttpRequest(b"POST", b"/v2/models/m/infer", list(fields), body)
                task = tasks.create_task(http.send(request, timeout_s=60.0))
                return task, await triton.arrivals.get()

            async def alone(*of: Any) -> int:
                task, exchange = await sent(*of)
                gate.let(exchange.number)
                await task
                return exchange.connection

            async with asyncio.TaskGroup() as tasks:
                three = [await sent() for _ in range(3)]
                for task, exchange in three:
                    gate.let(exchange.number)
                    await task
                large = b"1" * 300_000
                beside, parsed = await sent(large)
                light, held_up = await sent()
                later_s += 0.03
                gate.let(held_up.number, parsed.number)
                await asyncio.gather(beside, light)
                assert await alone(large) == parsed.connection
                assert {await alone(), await alone()} == {0, 1, 2} - {parsed.connection, held_up.connection}
                # Binary data is not parsed, nor does an answer that takes long by itself say anything.
                binary, copied = await sent(large, (b"Inference-Header-Content-Length", b"100"))
                light, slow = await sent()
                assert copied.connection != parsed.connection
                later_s += 0.03
                gate.let(slow.number)
                await light
                assert await alone() == slow.connection
                gate.let(copied.number)
                await binary
            await http.close()
            await triton.wait_until_open(0)

    async def test_large_json_does_not_move_to_a_connection_whose_answer_comes_late_after_it(self) -> None:
        """It may have been late for another reason, and on that thread nobody's connections are known."""
        gate, later_s, loop = Gate(), 0.0, asyncio.get_running_loop()
        async with scripted_triton(gate) as triton:
            http = HttpClient(TcpAddress("127.0.0.1", triton.port), max_connections=10, now_s=lambda: loop.time() + later_s)

            async def sent(body: bytes) -> tuple[asyncio.Task[HttpAnswer], Exchange]:
                request = HttpRequest(b"POST", b"/v2/models/m/infer", [], body)
                return tasks.create_task(http.send(request, timeout_s=60.0)), await triton.arrivals.get()

            async with asyncio.TaskGroup() as tasks:
                beside, parsed = await sent(b"1" * 300_000)
                light, late = await sent(b"{}")
                later_s += 0.03
                for task, exchange in ((beside, parsed), (light, late)):
                    gate.let(exchange.number)
                    await task
                again, exchange = await sent(b"1" * 300_000)
                gate.let(exchange.number)
                await again
                assert exchange.connection == parsed.connection != late.connection
            await http.close()
            await triton.wait_until_open(0)

    async def test_the_one_returned_last_is_taken_first(self) -> None:
        gate = Gate()
        async with pool(gate) as (http, triton):
            async with asyncio.TaskGroup() as tasks:
                sent = []
                for _ in range(3):
                    sent.append(tasks.create_task(send(http)))
                    await triton.arrivals.get()
                for number in (2, 0, 1):
                    gate.let(number)
                    await sent[number]
            gate.let(3, 4)
            await send(http)
            await send(http)
            assert [exchange.connection for exchange in triton.exchanges[3:]] == [1, 1]

    async def test_a_connection_that_triton_closes_after_the_answer_is_not_reused(self) -> None:
        async def closing(exchange: Exchange) -> bytes:
            return OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")

        async with pool(closing) as (http, triton):
            await send(http)
            await triton.wait_until_open(0)
            await send(http)
            assert triton.accepted == 2

    async def test_a_connection_that_triton_closes_while_it_is_idle_is_replaced(self) -> None:
        async with pool() as (http, triton):
            await send(http)
            triton.exchanges[0].writer.close()
            await triton.wait_until_open(0)
            await settle()
            assert (await send(http)).status == 200
            assert triton.accepted == 2

    async def test_a_connection_that_speaks_unasked_is_not_reused(self) -> None:
        async with pool() as (http, triton):
            await send(http)
            triton.exchanges[0].writer.write(OK)
            await triton.wait_until_open(0)
            assert (await send(http)).status == 200
            assert triton.accepted == 2


class TestFailure:
    @pytest.mark.parametrize(
        ("answer", "text"),
        [
            pytest.param(b"", "closed the connection before it answered", id="closed before the answer"),
            pytest.param(b"garbage\r\n\r\n", "cannot be read: not an answer", id="garbage"),
            pytest.param(b"HTTP/1.1 200 OK\r\n\r\n", "cannot be read: not an answer with a Content-Length", id="no length"),
            pytest.param(OK + OK, "cannot be read: 40 bytes follow", id="two answers"),
            pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", "cannot be read", id="an endless length"),
            pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2147483648\r\n\r\n", "2147483647 at most", id="too long"),
        ],
    )
    async def test_what_is_no_answer_is_unavailable_and_costs_the_connection(self, answer: bytes, text: str) -> None:
        async def scripted(exchange: Exchange) -> bytes:
            return answer

        async with pool(scripted, limit=1) as (http, triton):
            assert text in await failure(http, UpstreamUnavailable)
            await triton.wait_until_open(0)
            triton.script = answer_ok
            assert (await send(http)).status == 200
            assert triton.accepted == 2

    @pytest.mark.parametrize("cut", [1, 17, len(OK) - 1])
    async def test_closing_within_the_answer_is_unavailable(self, cut: int) -> None:
        async def scripted(exchange: Exchange) -> bytes:
            exchange.writer.write(OK[:cut])
            return b""

        async with pool(scripted, limit=1) as (http, _):
            assert "closed the connection before it answered" in await failure(http, UpstreamUnavailable)

    async def test_what_was_not_sent_is_told_from_what_may_have_been_computed(self) -> None:
        async def drop(exchange: Exchange) -> bytes:
            return b""

        async with pool(drop) as (http, _):
            with pytest.raises(UpstreamUnavailable) as sent:
                await send(http)
        with pytest.raises(UpstreamUnavailable) as unsent:
            await send(http)
        with pytest.raises(UpstreamUnavailable) as nobody:
            await send(HttpClient(TcpAddress("127.0.0.1", 1), max_connections=1))
        assert [each.value.is_not_sent for each in (sent, unsent, nobody)] == [False, True, True]

    async def test_nobody_there_is_unavailable_and_loses_no_slot(self) -> None:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            http = HttpClient(TcpAddress("127.0.0.1", bound.getsockname()[1]), max_connections=1)
            for _ in range(3):
                assert "cannot connect to Triton at 127.0.0.1:" in await failure(http, UpstreamUnavailable)

    async def test_nothing_is_sent_twice(self) -> None:
        """No retry: the caller decides whether an inference may run twice."""

        async def drop(exchange: Exchange) -> bytes:
            return b""

        async with pool(drop) as (http, triton):
            await failure(http, UpstreamUnavailable)
            await triton.wait_until_open(0)
            assert len(triton.exchanges) == 1
