"""A bare gRPC proxy: grpc.aio on both sides, messages passed on as the bytes they came as, on uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import uvloop

from perf.peers import arguments

UNLIMITED = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
Unary = Callable[[bytes, Any], Awaitable[bytes]]


class Handler(grpc.GenericRpcHandler):
    """Answers every method with the handler that `answering` gives for its path."""

    def __init__(self, answering: Callable[[str], Unary]) -> None:
        self._answering = answering
        self._known: dict[str, grpc.RpcMethodHandler] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        path = handler_call_details.method
        if path not in self._known:
            self._known[path] = grpc.unary_unary_rpc_method_handler(self._answering(path))
        return self._known[path]


async def serve(port: int, answering: Callable[[str], Unary]) -> None:
    server = grpc.aio.server(handlers=(Handler(answering),), options=(*UNLIMITED, ("grpc.so_reuseport", 0)))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


async def main(port: int, upstream: str) -> None:
    channel = grpc.aio.insecure_channel(upstream, options=UNLIMITED)

    def forwarding(path: str) -> Unary:
        method = channel.unary_unary(path)

        async def forward(message: bytes, context: Any) -> bytes:
            try:
                answer: bytes = await method(message)
            except grpc.aio.AioRpcError as exc:
                await context.abort(exc.code(), exc.details())
            return answer

        return forward

    await serve(port, forwarding)


if __name__ == "__main__":
    options = arguments()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(options.port, options.upstream))
