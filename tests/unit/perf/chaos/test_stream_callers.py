"""Callers of answers that come piece by piece, who say how one ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2

from perf.chaos import models
from perf.chaos.answers import BROKEN_OFF, CUT_SHORT, LOST, MODEL_STREAM, REFUSED, WRONG_ANSWER
from perf.chaos.callers import Asked, HttpCaller
from perf.chaos.stream_callers import (
    ChatCaller,
    ChatStreamCaller,
    DecoupledStreamCaller,
    GenerateStreamCaller,
    ModelStreamCaller,
)
from tests.aio import run

ASKED = Asked(MODEL_STREAM, "m", deadline_s=5.0)
NUMBER = 7.0
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
PIECES = models.written(NUMBER).split()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(told: object) -> bytes:
    return chunk(b"data: %b\n\n" % json.dumps(told).encode())


def pieces(count: int) -> bytes:
    return b"".join(event({"text_output": f"{each} "}) for each in PIECES[:count])


def deltas(count: int) -> bytes:
    return b"".join(event({"choices": [{"delta": {"content": f"{each} "}}]}) for each in PIECES[:count])


def whole_chat(text: str) -> bytes:
    return chunk(json.dumps({"choices": [{"message": {"content": text}}]}).encode())


async def over_http(caller: type[HttpCaller], reply: bytes) -> str:
    """What the caller says of a reply after which the connection ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        writer.write(reply)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        asking = caller(f"{host}:{port}")
        try:
            return await asking.ask(ASKED, NUMBER)
        finally:
            await asking.close()


@pytest.mark.parametrize(
    ("caller", "reply", "wrong"),
    [
        pytest.param(GenerateStreamCaller, HEAD + pieces(8) + END, "", id="whole"),
        pytest.param(GenerateStreamCaller, HEAD + pieces(3) + END, f"{CUT_SHORT} after 3 pieces", id="cut-short"),
        pytest.param(GenerateStreamCaller, HEAD + pieces(3), f"{LOST} after 3 pieces", id="cut-off"),
        pytest.param(GenerateStreamCaller, HEAD + pieces(3) + event({"error": "died"}) + END, f"{BROKEN_OFF} died", id="broken-off"),
        pytest.param(GenerateStreamCaller, HEAD + event({"error": "died"}) + END, "died", id="failed"),
        pytest.param(GenerateStreamCaller, HEAD + event({"text_output": "8.0 "}) + END, WRONG_ANSWER, id="another-one's"),
        pytest.param(
            GenerateStreamCaller, b"HTTP/1.1 503 X\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\nbusy", f"{REFUSED} 503 busy", id="refused"
        ),
        pytest.param(GenerateStreamCaller, b"HTTP/1.1 500 X\r\nContent-Length: 4\r\n\r\ndied", "500 died", id="failed-by-status"),
        pytest.param(ChatStreamCaller, HEAD + deltas(8) + chunk(b"data: [DONE]\n\n") + END, "", id="chat-whole"),
        pytest.param(ChatStreamCaller, HEAD + deltas(8) + END, f"{CUT_SHORT} after 8 pieces", id="chat-not-done"),
        pytest.param(
            ChatStreamCaller, HEAD + deltas(2) + event({"error": {"message": "died"}}), f"{BROKEN_OFF} died", id="chat-broken-off"
        ),
        pytest.param(ChatCaller, HEAD + whole_chat(models.written(NUMBER)) + END, "", id="whole-chat"),
        pytest.param(ChatCaller, HEAD + whole_chat("7.0 ") + END, WRONG_ANSWER, id="whole-chat-cut-short"),
        pytest.param(ChatCaller, HEAD + whole_chat(models.written(NUMBER)), LOST, id="whole-chat-cut-off"),
    ],
)
def test_how_an_answer_over_http_ended(caller: type[HttpCaller], reply: bytes, wrong: str) -> None:
    found = run(over_http(caller, reply))
    assert found.startswith(wrong)
    assert bool(found) is bool(wrong)


def text(piece: str) -> bytes:
    raw = f"{piece} ".encode()
    answer = service_pb2.ModelInferResponse(raw_output_contents=[len(raw).to_bytes(4, "little") + raw])
    return bytes(service_pb2.ModelStreamInferResponse(infer_response=answer).SerializeToString())


def error(message: str) -> bytes:
    return bytes(service_pb2.ModelStreamInferResponse(error_message=message).SerializeToString())


def numbers(messages: Iterable[bytes]) -> list[bytes]:
    """The answers of a model that says the number that it is sent."""
    answers = (service_pb2.ModelInferRequest.FromString(each).raw_input_contents[0][:4] for each in messages)
    found = (service_pb2.ModelInferResponse(raw_output_contents=[each]) for each in answers)
    return [bytes(service_pb2.ModelStreamInferResponse(infer_response=each).SerializeToString()) for each in found]


@asynccontextmanager
async def streaming(answer: Callable[[list[bytes]], list[bytes]], code: grpc.StatusCode, advice: Any = ()) -> AsyncIterator[str]:
    """The address of a server that answers a stream once it is half-closed, and ends it with this status."""

    async def stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        for each in answer([message async for message in messages]):
            yield each
        if code is not grpc.StatusCode.OK:
            context.set_trailing_metadata(advice)
            await context.abort(code, "gone")

    server = grpc.aio.server()
    handlers = {"ModelStreamInfer": grpc.stream_stream_rpc_method_handler(stream)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def over_grpc(caller: type[ModelStreamCaller], answer: Any, code: grpc.StatusCode, advice: Any = ()) -> str:
    async with streaming(answer, code, advice) as address:
        asking = caller(address)
        try:
            return await asking.ask(ASKED, NUMBER)
        finally:
            await asking.close()


OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE
ALL, SOME = [text(each) for each in PIECES], [text(each) for each in PIECES[:3]]


@pytest.mark.parametrize(
    ("caller", "answer", "status", "wrong"),
    [
        pytest.param(ModelStreamCaller, numbers, (OK,), "", id="each-answered"),
        pytest.param(ModelStreamCaller, lambda sent: numbers(sent)[:2], (OK,), f"{CUT_SHORT} after 2 pieces", id="one-not-answered"),
        pytest.param(ModelStreamCaller, lambda sent: [error("died")], (OK,), "died", id="failed"),
        pytest.param(ModelStreamCaller, lambda sent: [error("busy; try again")], (OK,), f"{REFUSED} busy; try again", id="refused-on-it"),
        pytest.param(DecoupledStreamCaller, lambda _: ALL, (OK,), "", id="whole"),
        pytest.param(DecoupledStreamCaller, lambda _: SOME, (OK,), f"{CUT_SHORT} after 3 pieces", id="cut-short"),
        pytest.param(DecoupledStreamCaller, lambda _: [*SOME, error("died")], (OK,), f"{BROKEN_OFF} died", id="broken-off"),
        pytest.param(DecoupledStreamCaller, lambda _: SOME, (UNAVAILABLE,), f"{BROKEN_OFF} UNAVAILABLE gone", id="broken-off-by-status"),
        pytest.param(DecoupledStreamCaller, lambda _: [error("died")], (OK,), f"{BROKEN_OFF} died", id="what-is-sent-once"),
        pytest.param(
            DecoupledStreamCaller, lambda _: [], (UNAVAILABLE, (("retry-after", "1"),)), f"{REFUSED} UNAVAILABLE gone", id="refused"
        ),
    ],
)
def test_how_a_stream_over_grpc_ended(caller: type[ModelStreamCaller], answer: Any, status: Any, wrong: str) -> None:
    assert run(over_grpc(caller, answer, *status)) == wrong


def test_a_connection_that_breaks_is_told_from_a_status() -> None:
    async def cut() -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1 << 16)
            writer.transport.abort()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            asking = DecoupledStreamCaller(f"{host}:{port}")
            try:
                return await asking.ask(ASKED, NUMBER)
            finally:
                await asking.close()

    assert run(cut()).startswith(LOST)
