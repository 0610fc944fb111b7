"""A stand-in for a newer Triton: the real one behind it, with what a newer release answers otherwise.

    python -m tests.triton_like --like 26.11 --http-upstream HOST:PORT --grpc-upstream HOST:PORT [--forwards PATTERN]

It writes its two ports as JSON on a line of its own. What 26.11 does is from Triton's sources (`src/common.h`,
`src/http_server.cc`, `src/grpc/grpc_server.cc`, `src/grpc/infer_handler.h`, 2.73): clients may not register shared memory,
forwarded headers may not be named as Triton's own parameters, and of an HTTP body's chunks there are 65,536 at most. HTTP is
read only as far as that takes, and only as a gateway sends it: one request after the other on a connection.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

VERSIONS = ("26.11",)
NO_SHARED_MEMORY = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
MOST_CHUNKS = 1 << 16
_RESERVED = frozenset(("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"))
_REGISTERS_OVER_HTTP = re.compile(rb"/v2/(?:system|cuda)sharedmemory/(?:region/[^/]*/)?(?:un)?register")
_REGISTERS_OVER_GRPC = re.compile(r".*/(?:System|Cuda)SharedMemory(?:Unr|R)egister")
_ANY_SIZE = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
_NOT_OURS = frozenset(("user-agent", "grpc-accept-encoding", "accept-encoding", "content-type", "te"))


class Refused(Exception):
    """A request that the newer release refuses."""

    def __init__(self, status: str, text: str, *, ends: bool = False) -> None:
        super().__init__(text)
        self.status, self.text, self.ends = status, text, ends


class Rules:
    """What 26.11 refuses."""

    def __init__(self, forwards: str) -> None:
        """`forwards` is the pattern of Triton's --http-header-forward-pattern and --grpc-header-forward-pattern."""
        self._forwards = re.compile(forwards, re.IGNORECASE) if forwards else None

    def check_names(self, names: Iterable[str]) -> None:
        """Raises Refused: a header that is forwarded has the name of a parameter of Triton's own."""
        for name in names if self._forwards is not None else ():
            is_reserved = name in _RESERVED or name.startswith("triton_")
            if is_reserved and self._forwards is not None and self._forwards.search(name):
                raise Refused("400 Bad Request", f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")

    def check_target(self, target: bytes) -> None:
        """Raises Refused: it registers, or forgets, shared memory."""
        if _REGISTERS_OVER_HTTP.fullmatch(target.partition(b"?")[0]):
            raise Refused("501 Not Implemented", NO_SHARED_MEMORY)


async def serve_http(rules: Rules, upstream: str) -> asyncio.Server:
    host, _, port = upstream.rpartition(":")

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, to_triton = await asyncio.open_connection(host, int(port))
        answering = asyncio.ensure_future(_pump(theirs, writer))  # noqa: TID251 - ended here
        try:
            while await _pass_on(rules, reader, writer, to_triton):
                pass
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            # The caller has left, or Triton has: either ends the other's connection at once.
            answering.cancel()
            for each in (to_triton, writer):
                each.transport.abort()

    return await asyncio.start_server(connected, "127.0.0.1", 0, limit=1 << 20)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _pass_on(rules: Rules, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to_triton: asyncio.StreamWriter) -> bool:
    """Pass one request on, or answer it; return whether another may follow."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head[:-4].split(b"\r\n")
    fields = [(name.decode("latin-1"), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    named = {name.lower(): value for name, value in fields}
    try:
        is_chunked = b"chunked" in named.get("transfer-encoding", b"").lower()
        body = await _chunks(reader) if is_chunked else await reader.readexactly(int(named.get("content-length", b"0")))
        rules.check_target(first.split(b" ")[1])
        if first.split(b" ")[1].endswith((b"/infer", b"/generate", b"/generate_stream")):
            rules.check_names(name for name, _ in fields)
    except Refused as refused:
        text = json.dumps({"error": refused.text}, separators=(",", ":")).encode()
        length = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text)
        writer.write(f"HTTP/1.1 {refused.status}\r\n".encode() + length + text)
        await writer.drain()
        return not refused.ends
    to_triton.write(head + body)
    await to_triton.drain()
    return True


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    """Read a chunked body as it is. Raises Refused: it has too many chunks."""
    parts: list[bytes] = []
    while True:
        size = await reader.readuntil(b"\r\n")
        length = int(size.partition(b";")[0], 16)
        parts += (size, await reader.readexactly(length + 2))
        if not length:
            return b"".join(parts)
        if len(parts) // 2 > MOST_CHUNKS:
            text = f"Chunked request body exceeds maximum of {MOST_CHUNKS} non-empty chunks. Send fewer or larger HTTP chunks."
            raise Refused("400 Bad Request", text, ends=True)


class GrpcHandler(grpc.GenericRpcHandler):
    """Passes every call on with its messages as they are."""

    def __init__(self, rules: Rules, channel: grpc.aio.Channel) -> None:
        self._rules, self._channel = rules, channel

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        path = handler_call_details.method

        async def unary(message: bytes, context: Any) -> bytes:
            if _REGISTERS_OVER_GRPC.fullmatch(path):
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, NO_SHARED_MEMORY)
            metadata = await self._metadata(path, context)
            running = self._channel.unary_unary(path)(message, metadata=metadata, timeout=context.time_remaining())
            try:
                answer: bytes = await running
            except grpc.aio.AioRpcError as exc:
                await context.abort(exc.code(), exc.details(), tuple(exc.trailing_metadata() or ()))
            context.set_trailing_metadata(tuple(await running.trailing_metadata() or ()))
            return answer

        async def stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            metadata = await self._metadata(path, context)
            running = self._channel.stream_stream(path)(messages, metadata=metadata, timeout=context.time_remaining())
            try:
                async for answer in running:
                    yield answer
            except grpc.aio.AioRpcError as exc:
                await context.abort(exc.code(), exc.details(), tuple(exc.trailing_metadata() or ()))

        return grpc.stream_stream_rpc_method_handler(stream) if path.endswith("StreamInfer") else grpc.unary_unary_rpc_method_handler(unary)

    async def _metadata(self, path: str, context: Any) -> tuple[tuple[str, str | bytes], ...]:
        fields = tuple((name, value) for name, value in context.invocation_metadata() or () if name not in _NOT_OURS)
        if path.endswith("Infer"):
            try:
                self._rules.check_names(name for name, _ in fields)
            except Refused as refused:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, refused.text)
        return fields


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--like", choices=VERSIONS, required=True)
    parser.add_argument("--http-upstream", required=True)
    parser.add_argument("--grpc-upstream", required=True)
    parser.add_argument("--forwards", default="")
    given = parser.parse_args()
    rules = Rules(given.forwards)
    async with await serve_http(rules, given.http_upstream) as http, grpc.aio.insecure_channel(given.grpc_upstream, _ANY_SIZE) as channel:
        server = grpc.aio.server(handlers=(GrpcHandler(rules, channel),), options=(*_ANY_SIZE, ("grpc.so_reuseport", 0)))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(json.dumps({"http": http.sockets[0].getsockname()[1], "grpc": port}), flush=True)  # noqa: T201 - what it is asked for
        await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
