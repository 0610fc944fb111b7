"""Callers count each answer once, whatever its bytes' cuts; refusals are errors, and a connection that breaks ends the run."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress

import grpc
import numpy as np
import pytest

from perf.load import closed_loop
from perf.load.closed_loop import Ask, Loaded
from perf.load.inference_requests import http_post, triton_grpc
from perf.measurement.runs import ClosedLoopRun

OK = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n"
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy"
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nlast"


@contextmanager
def http_server(answer: Callable[[bytes], list[bytes]]) -> Iterator[str]:
    """Answers each body with these pieces, each sent by itself; an empty one closes the connection."""
    loop, started = asyncio.new_event_loop(), threading.Event()
    addresses: list[str] = []
    serving: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]))
                for piece in answer(body):
                    if not piece:
                        return
                    writer.write(piece)
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def run() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            addresses.append(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
            started.set()
            await stop.wait()
        left = [task for task in serving if task is not None]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)  # or a connection is told to be left open, in whichever test comes then

    stop = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    started.wait()
    try:
        yield addresses[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def echo(body: bytes) -> list[bytes]:
    return [OK % len(body) + body]


def byte_by_byte(body: bytes) -> list[bytes]:
    return [bytes([byte]) for byte in echo(body)[0]]


def asks(*bodies: bytes) -> list[Ask]:
    return [Ask(http_post("/", body), "short") for body in bodies]


@pytest.mark.parametrize("answer", [pytest.param(echo, id="whole"), pytest.param(byte_by_byte, id="byte by byte")])
def test_answers_come_back_in_order(answer: Callable[[bytes], list[bytes]]) -> None:
    with http_server(answer) as address:
        assert closed_loop.collect("http", address, asks(b"one", b"", b"three")) == [b"one", b"", b"three"]


def test_all_requests_are_asked_once_and_told_apart_by_kind() -> None:
    seen: list[bytes] = []

    def answer(body: bytes) -> list[bytes]:
        seen.append(body)
        return echo(body)

    wanted = [Ask(http_post("/", b"%d" % number), "even" if number % 2 == 0 else "odd") for number in range(21)]
    with http_server(answer) as address:
        loaded = closed_loop.run("http", address, iter(wanted), callers=4, duration_s=30)
    assert sorted(seen, key=int) == [b"%d" % number for number in range(21)]
    assert {kind: len(values) for kind, values in loaded.latencies_ms.items()} == {"even": 11, "odd": 10}
    assert (loaded.requests, loaded.errors) == (21, 0)
    assert 0 < loaded.percentile_ms(50, "odd") <= loaded.percentile_ms(100) < loaded.seconds * 1e3
    assert loaded.percentile_ms(50, "none of these") != loaded.percentile_ms(50, "none of these")


def test_a_run_ends_after_its_duration() -> None:
    with http_server(echo) as address:
        loaded = closed_loop.run("http", address, itertools.cycle(asks(b"again")), callers=2, duration_s=0.1)
    assert loaded.requests > 2
    assert loaded.seconds >= 0.1


def test_a_server_that_closes_after_each_answer_is_connected_to_again() -> None:
    with http_server(lambda _: [CLOSING, b""]) as address:
        assert closed_loop.collect("http", address, asks(b"1", b"2", b"3")) == [b"last"] * 3


def test_refusals_are_counted_and_refuse_a_collection() -> None:
    with http_server(lambda body: [REFUSED] if body == b"no" else echo(body)) as address:
        loaded = closed_loop.run("http", address, iter(asks(b"yes", b"no", b"yes")), callers=1, duration_s=30)
        assert (loaded.requests, loaded.errors) == (3, 1)
        with pytest.raises(RuntimeError, match="refused 1 of 2"):
            closed_loop.collect("http", address, asks(b"yes", b"no"))


def test_a_connection_that_breaks_ends_the_run() -> None:
    with http_server(lambda body: [OK[:10], b""]) as address, pytest.raises(RuntimeError, match="a connection broke: closed by the server"):
        closed_loop.collect("http", address, asks(b"1"))


@contextmanager
def grpc_server(answer: Callable[[bytes, grpc.ServicerContext], bytes]) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    handlers = {"ModelInfer": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def test_grpc_answers_come_back_from_grpcio() -> None:
    texts = [Ask(triton_grpc("m").encode(text), "short") for text in ("one", "two", "three")]
    with grpc_server(lambda message, _: message * 2000) as address:
        answers = closed_loop.collect("grpc", address, texts)
    assert answers == [ask.data[5:] * 2000 for ask in texts]


def test_grpc_refusals_are_errors() -> None:
    def answer(message: bytes, context: grpc.ServicerContext) -> bytes:
        if b"bad" in message:
            context.abort(grpc.StatusCode.UNAVAILABLE, "no")
        return message

    texts = [Ask(triton_grpc("m").encode(text), "short") for text in ("good", "bad", "good")]
    with grpc_server(answer) as address:
        loaded = closed_loop.run("grpc", address, iter(texts), callers=1, duration_s=30)
    assert (loaded.requests, loaded.errors) == (3, 1)


def test_a_run_at_a_server_has_rates_shares_and_its_cpu_time_per_request() -> None:
    loaded = Loaded(2.0, {"short": np.full(30, 5.0), "long": np.full(10, 9.0)}, errors=1, client_cpu_s=0.5)
    assert loaded.at_server(0.8) == ClosedLoopRun(
        requests_per_s=20.0, p50_ms=5.0, p99_ms=9.0, cpu_ms=pytest.approx(20.0), client_share=0.25, errors=1
    )
