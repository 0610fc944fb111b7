"""gRPC server for tests, grpc's own, in Triton's place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

Handler = Callable[[bytes, Any], Awaitable[bytes]]
StreamHandler = Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]


class FakeServer(grpc.GenericRpcHandler):
    """Handler that answers every method by `handle`, and those that end in `Stream` by `stream`; it records
    what arrives.
    """

    def __init__(self, handle: Handler, stream: StreamHandler | None = None) -> None:
        self.handle = handle
        self.stream = stream
        self.port = 0
        self.arrivals: asyncio.Queue[tuple[str, bytes, Any]] = asyncio.Queue()
        self.metadata: list[tuple[tuple[str, str | bytes], ...]] = []
        """Metadata of each call; a context's own are in memory that grpcio frees with the call."""
        self.cancelled = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = handler_call_details.method
        if method.endswith("Stream"):
            return grpc.stream_stream_rpc_method_handler(self._noting_stream)

        async def handle(message: bytes, context: Any) -> bytes:
            self.metadata.append(tuple(tuple(pair) for pair in context.invocation_metadata()))
            self.arrivals.put_nowait((method, message, context))
            try:
                return await self.handle(message, context)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise

        return grpc.unary_unary_rpc_method_handler(handle)

    async def start(self, port: int = 0) -> None:
        options = (("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0), ("grpc.http2.bdp_probe", 0))
        self._server = grpc.aio.server(handlers=(self,), options=options)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()

    async def stop(self, grace_s: float = 0) -> None:
        if self._server is not None:
            await self._server.stop(grace_s)

    async def _noting_stream(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        assert self.stream is not None
        self.arrivals.put_nowait(("", b"", context))
        try:
            async for message in self.stream(messages, context):
                yield message
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@asynccontextmanager
async def serving(handle: Handler, stream: StreamHandler | None = None) -> AsyncIterator[FakeServer]:
    fake = FakeServer(handle, stream)
    await fake.start()
    try:
        yield fake
    finally:
        await fake.stop()


async def echo(message: bytes, context: Any) -> bytes:
    return message


async def never(message: bytes, context: Any) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


def aborting(code: grpc.StatusCode, details: str = "why", trailing: tuple[tuple[str, str | bytes], ...] = ()) -> Handler:
    async def handle(message: bytes, context: Any) -> bytes:
        await context.abort(code, details, trailing)
        raise AssertionError

    return handle
