"""Callers for `perf.waiting`: raw connections that cost this process little, on either protocol, and uploads from processes beside them."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any, Protocol

import grpc
import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2

from perf.load.echo_requests import GRPC_PATH, GRPC_SERVICE, HEADER_LENGTH, grpc_request, http_request

_HEAD_BYTES = 4096
"""At most, of an upload's tensor: 128 MiB with it stay just under the gateway's default limit."""

_PIECE_BYTES = 1 << 18
_UNLIMITED = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
_SMALL = np.zeros((1, 384), dtype=np.float32)
_INFERENCES = {"small": ("echo", "INPUT0", _SMALL), "behind": ("hold", "SECONDS", np.zeros(1, dtype=np.float32))}


class Caller(Protocol):
    """Client with one connection."""

    async def ask(self, what: str) -> None:
        """`live`, `ready`, `small` (an inference of `echo`) or `behind` (one of `hold` that takes no time itself).

        Raises RuntimeError when it is refused.
        """

    async def hold(self, seconds: float) -> None:
        """Keep the model `hold` busy."""

    async def close(self) -> None: ...


class HttpCaller:
    """HTTP client with a keep-alive connection and one request at a time, which connects when it is first used."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, what: str) -> None:
        await self._exchange(_HTTP[what])

    async def hold(self, seconds: float) -> None:
        await self._exchange(http_inference("hold", "SECONDS", np.array([seconds], dtype=np.float32)))

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _exchange(self, request: bytes) -> None:
        try:
            await self._exchange_once(request)
        except BaseException:
            await self.close()  # an answer given up on would be taken for the next one's
            raise

    async def _exchange_once(self, request: bytes) -> None:
        if self._streams is None:
            host, _, port = self._address.rpartition(":")
            self._streams = await asyncio.open_connection(host, int(port))
        reader, writer = self._streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        body = await reader.readexactly(int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]))
        if not head.startswith(b"http/1.1 200 "):
            raise RuntimeError((head + body).decode(errors="replace"))


class GrpcCaller:
    """gRPC client with a channel and a connection of its own; any number of calls at a time."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=_UNLIMITED)

    async def ask(self, what: str) -> None:
        await self._call(*_GRPC[what])

    async def hold(self, seconds: float) -> None:
        await self._call(GRPC_PATH, grpc_inference("hold", "SECONDS", np.array([seconds], dtype=np.float32)))

    async def close(self) -> None:
        await self._channel.close()

    async def _call(self, path: str, message: bytes) -> None:
        try:
            await self._channel.unary_unary(path)(message)
        except grpc.aio.AioRpcError as exc:
            raise RuntimeError(f"{path}: {exc.code()} {exc.details()}") from exc


CALLERS: dict[str, Callable[[str], Caller]] = {"http": HttpCaller, "grpc": GrpcCaller}


def ready() -> None:
    """Nothing: the process that it is carried out by has started."""


def upload_for(protocol: str, address: str, seconds: float, *, mib: int, mib_per_s: float) -> int:
    """Upload one tensor of so many MiB after the other for so long; how many were answered.

    In a process of its own: gRPC's client copies a message with Python's lock held, 30 ms for 128 MiB, in which no caller of the
    same process would see his answer. Over HTTP at `mib_per_s`, or as fast as it goes when that is 0; over gRPC, whose client sends
    a message as fast as it can, always so.
    """
    until_s = time.monotonic() + seconds
    tensor = np.zeros(((mib << 20) - _HEAD_BYTES) // 4, dtype=np.float32)
    return _upload_http(address, tensor, until_s, mib_per_s) if protocol == "http" else _upload_grpc(address, tensor, until_s)


def _upload_http(address: str, tensor: Any, until_s: float, mib_per_s: float) -> int:
    request, count = http_inference("swallow", "INPUT0", tensor), 0
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        while time.monotonic() < until_s:
            _send_paced(connection, memoryview(request), mib_per_s)
            answer = connection.recv(65536)
            if not answer.startswith(b"HTTP/1.1 200 "):
                raise RuntimeError(f"an upload was refused: {answer.decode(errors='replace')}")
            count += 1
    return count


def _send_paced(connection: socket.socket, data: memoryview, mib_per_s: float) -> None:
    piece_bytes, started_s = _PIECE_BYTES if mib_per_s else len(data), time.monotonic()
    for at in range(0, len(data), piece_bytes):
        connection.sendall(data[at : at + piece_bytes])
        if mib_per_s:
            time.sleep(max(0.0, started_s + at / 2**20 / mib_per_s - time.monotonic()))


def _upload_grpc(address: str, tensor: Any, until_s: float) -> int:
    message, count = grpc_inference("swallow", "INPUT0", tensor), 0
    with grpc.insecure_channel(address, options=_UNLIMITED) as channel:
        call = channel.unary_unary(GRPC_PATH)
        while time.monotonic() < until_s:
            call(message, timeout=60)
            count += 1
    return count


def http_inference(model: str, name: str, tensor: Any) -> bytes:
    """A whole request, head and body."""
    message = http_request(name, tensor)
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\n{HEADER_LENGTH}: {message.header_length}\r\n"
    return f"{head}Content-Length: {len(message.body)}\r\n\r\n".encode() + message.body


def grpc_inference(model: str, name: str, tensor: Any) -> bytes:
    """A serialised ModelInferRequest."""
    message: bytes = grpc_request(model, name, tensor).SerializeToString()
    return message


_HTTP = {name: f"GET /v2/health/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for name in ("live", "ready")} | {
    what: http_inference(*inference) for what, inference in _INFERENCES.items()
}
_GRPC = {
    "live": (GRPC_SERVICE + "ServerLive", service_pb2.ServerLiveRequest().SerializeToString()),
    "ready": (GRPC_SERVICE + "ServerReady", service_pb2.ServerReadyRequest().SerializeToString()),
} | {what: (GRPC_PATH, grpc_inference(*inference)) for what, inference in _INFERENCES.items()}
