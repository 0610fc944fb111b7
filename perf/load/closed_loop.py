"""Callers that ask again as soon as they were answered, with requests that are bytes already, so that they cost little.

One process and one thread (uvloop). It reads of an answer what it must, its length and its status, and says how much CPU it took.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import hpack
import numpy as np
import uvloop
from numpy.typing import NDArray

from control_plane.protocols.http2 import frames as http2
from perf.measurement.runs import ClosedLoopRun

_GRACE_S = 180.0
"""Time for the last answers: a slow server with many callers has a queue to work off."""


class Ask(NamedTuple):
    """A whole HTTP request or, for gRPC, a length-prefixed message; `kind` tells latencies apart."""

    data: bytes
    kind: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """Result of one run: from the first request sent to the last one answered."""

    seconds: float
    latencies_ms: Mapping[str, NDArray[np.float64]]
    """Latencies by kind of request."""
    errors: int
    client_cpu_s: float

    @property
    def requests(self) -> int:
        return sum(map(len, self.latencies_ms.values()))

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds

    @property
    def client_share(self) -> float:
        """CPU that the load generator took, of one core."""
        return self.client_cpu_s / self.seconds

    def percentile_ms(self, percent: float, kind: str | None = None) -> float:
        """Return a percentile of all latencies, or of those of one kind; NaN where there was none."""
        latencies = [values for name, values in self.latencies_ms.items() if kind in (None, name)]
        return float(np.percentile(np.concatenate(latencies), percent)) if latencies else float("nan")

    def at_server(self, cpu_s: float) -> ClosedLoopRun:
        """Return the run at a server whose processes took so much CPU time meanwhile."""
        cpu_ms = cpu_s / self.requests * 1e3
        return ClosedLoopRun(self.requests_per_s, self.percentile_ms(50), self.percentile_ms(99), cpu_ms, self.client_share, self.errors)


def run(protocol: str, address: str, asks: Iterator[Ask], *, callers: int, duration_s: float) -> Loaded:
    """Ask for `duration_s`, or until `asks` ends, each caller over a connection of its own, and wait for what was asked by then.

    Raises RuntimeError when a connection breaks or answers stay away.
    """
    state = _State(asks, duration_s)
    cpu_s = time.process_time()
    uvloop.run(_run(state, protocol, address, callers))
    return Loaded(
        state.last_s - state.started_s,
        {kind: np.array(values) * 1e3 for kind, values in state.latencies_s.items()},
        state.errors,
        time.process_time() - cpu_s,
    )


def collect(protocol: str, address: str, asks: Sequence[Ask]) -> list[bytes]:
    """Return each request's answer (over gRPC its message), asked one after the other. Raises RuntimeError when one is refused."""
    state = _State(iter(asks), float("inf"))
    state.bodies = []
    uvloop.run(_run(state, protocol, address, 1))
    if state.errors:
        raise RuntimeError(f"{protocol} at {address} refused {state.errors} of {len(asks)} requests")
    return state.bodies


async def _run(state: _State, protocol: str, address: str, callers: int) -> None:
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()

    async def connect() -> _Connection:
        _, connection = await loop.create_connection(PROTOCOLS[protocol], host, int(port))
        return connection

    connections = [await connect() for _ in range(callers)]
    state.started_s = state.last_s = time.perf_counter()
    try:
        async with asyncio.timeout(min(state.duration_s, _GRACE_S) + _GRACE_S), asyncio.TaskGroup() as tasks:
            for connection in connections:
                tasks.create_task(_call(state, connection, connect))
    except TimeoutError as exc:
        raise RuntimeError(f"{protocol} at {address} did not answer within {_GRACE_S:.0f} s") from exc
    except ExceptionGroup as exc:
        raise RuntimeError(f"{protocol} at {address}: {exc.exceptions[0]}") from exc


async def _call(state: _State, connection: _Connection, connect: Callable[[], Awaitable[_Connection]]) -> None:
    """Run one caller. A server that closes its connection after each answer costs the next request a new one."""
    try:
        while (ask := state.next_ask()) is not None:
            sent_s = time.perf_counter()
            if connection.is_closed:
                connection = await connect()
            await connection.ask_on(state, ask, sent_s)
    finally:
        connection.close()


class _State:
    """State that all callers of a run share."""

    started_s: float
    last_s: float

    def __init__(self, asks: Iterator[Ask], duration_s: float) -> None:
        self._asks = asks
        self.duration_s = duration_s
        self.latencies_s: dict[str, list[float]] = {}
        self.errors = 0
        self.bodies: list[bytes] | None = None

    def next_ask(self) -> Ask | None:
        """None when a caller may go."""
        return next(self._asks, None) if time.perf_counter() - self.started_s < self.duration_s else None

    def answered(self, kind: str, sent_s: float, body: bytes | None) -> None:
        """`body` is None for an error."""
        self.last_s = time.perf_counter()
        self.latencies_s.setdefault(kind, []).append(self.last_s - sent_s)
        if body is None:
            self.errors += 1
        elif self.bodies is not None:
            self.bodies.append(body)


class _Connection(asyncio.Protocol):
    """Connection with one request at a time; from one answer to the next request no task is woken."""

    is_closed = False
    _rests: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        if self._rests is not None and not self._rests.done():
            self._rests.set_exception(RuntimeError(f"a connection broke: {exc or 'closed by the server'}"))

    async def ask_on(self, state: _State, ask: Ask, sent_s: float) -> None:
        """Ask and, when answered, ask again, until there is nothing more or the connection is closed after an answer."""
        self._state, self._rests = state, asyncio.get_running_loop().create_future()
        self._send(ask, sent_s)
        await self._rests

    def close(self) -> None:
        self.is_closed = True
        self._transport.abort()

    def _send(self, ask: Ask, sent_s: float) -> None:
        self._kind, self._sent_s = ask.kind, sent_s
        self._transport.write(self._request(ask.data))

    def _answered(self, body: bytes | None, *, is_last: bool = False) -> None:
        self._state.answered(self._kind, self._sent_s, body)
        ask = None if is_last else self._state.next_ask()
        if ask is not None:
            self._send(ask, time.perf_counter())
            return
        assert self._rests is not None
        self._rests.set_result(None)
        if is_last:
            self.close()

    def _request(self, data: bytes) -> bytes:
        raise NotImplementedError


class _Http(_Connection):
    """Connection over HTTP/1.1; all servers here answer with Content-Length."""

    def __init__(self) -> None:
        self._buffer, self._end = b"", 0

    def _request(self, data: bytes) -> bytes:
        return data

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._end:
            head, found, _ = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            head = head.lower()
            self._start = len(head) + 4
            self._end = self._start + int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
            self._is_last = b"\r\nconnection: close" in head
        if len(self._buffer) >= self._end:
            body = self._buffer[self._start : self._end] if self._buffer[9:10] == b"2" else None
            self._buffer, self._end = self._buffer[self._end :], 0
            self._answered(body, is_last=self._is_last)


class _Grpc(_Connection):
    """ModelInfer over HTTP/2. Our windows are opened as wide as they go; the server's has room for one small call at any time."""

    def __init__(self) -> None:
        self._frames = http2.FrameReader(http2.DEFAULT_MAX_FRAME_BYTES)
        self._stream_id, self._message = -1, b""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # Without a header table equal blocks mean equal fields, so a block is read once.
        settings = {http2.Setting.HEADER_TABLE_SIZE: 0, http2.Setting.INITIAL_WINDOW_SIZE: http2.MAX_WINDOW_BYTES}
        opened = http2.MAX_WINDOW_BYTES - http2.DEFAULT_WINDOW_BYTES
        transport.write(http2.PREFACE + http2.settings_frame(settings) + http2.window_update(0, opened))

    def _request(self, data: bytes) -> bytes:
        self._stream_id += 2
        self._message = b""
        headers = http2.frame_head(http2.HEADERS, http2.END_HEADERS, self._stream_id, len(_GRPC_HEAD)) + _GRPC_HEAD
        return headers + http2.frame_head(http2.DATA, http2.END_STREAM, self._stream_id, len(data)) + data

    def data_received(self, data: bytes) -> None:
        for kind, flags, _, payload in self._frames.feed(data):
            if kind == http2.DATA:
                self._message += payload
            elif kind == http2.HEADERS and flags & http2.END_STREAM:
                self._answered(self._message[5:] if _status(bytes(payload)) == b"0" else None)
            elif kind == http2.SETTINGS and not flags & http2.ACK:
                self._transport.write(http2.SETTINGS_ACK)
            elif kind == http2.PING and not flags & http2.ACK:
                self._transport.write(http2.ping_ack(bytes(payload)))
            elif kind in (http2.RST_STREAM, http2.GOAWAY):
                self._transport.abort()
                self.connection_lost(ConnectionResetError(f"the server sent {bytes(payload)!r}"))


def _literal(name: bytes, value: bytes) -> bytes:
    """A header field that goes into nobody's table (RFC 7541, 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


_NO_TABLE = b"\x20"
"""A table of size 0 (RFC 7541, 6.3), as a server that announces none wants to be told."""

_GRPC_HEAD = _NO_TABLE + b"".join(
    _literal(name, value)
    for name, value in (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
        (b":authority", b"localhost"), (b"te", b"trailers"), (b"content-type", b"application/grpc"),
    )
)  # fmt: skip


@cache
def _status(block: bytes) -> bytes:
    fields = dict(hpack.Decoder().decode(block, raw=True))
    return bytes(fields.get(b"grpc-status", b""))


PROTOCOLS = {"http": _Http, "grpc": _Grpc}
