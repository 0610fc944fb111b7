"""gRPC client of Triton for the data plane: calls pass through as the bytes they came as, over a few HTTP/2
connections.

It is the hot path of the gRPC frontend, and therefore uses asyncio transports and the frontend's HTTP/2
implementation directly. It never retries. Large messages have a connection of their own, and so have streams:
on a shared connection they, or data that a slow reader has not taken, would fill the flow-control window that
small calls need. Typed calls of the control plane use `triton/adapters/control`.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from enum import StrEnum
from math import inf
from typing import cast

from control_plane.concurrency.deadline_timer import DeadlineTimer
from control_plane.concurrency.paced_writes import PacedWriter
from control_plane.core.algorithms.bounded_cache import BoundedCache
from control_plane.core.endpoints import GRPC_CONTROL_FIELD, Address
from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.infer_call import SendFailure
from control_plane.protocols.grpc import (
    GrpcAnswer,
    GrpcHead,
    GrpcStatus,
    MessageFrame,
    status_answer,
    timeout_value,
)
from control_plane.protocols.header_forwarding import NO_FORWARDING, HeaderForwarding
from control_plane.protocols.http2.connection import Http2Connection
from control_plane.protocols.http2.frames import Code, Http2Error
from control_plane.protocols.http2.headers import Fields, KnownBlocks, encode_varying, size_of
from control_plane.protocols.http2.limits import Http2Limits
from control_plane.protocols.http2.stream import Stream
from control_plane.triton.adapters.abandoned import patience_s, told_after_s
from control_plane.triton.adapters.connecting import LARGE_READ_BYTES, MAX_ANSWER_BYTES, open_connection
from control_plane.triton.adapters.grpc.calls import Exchange, TritonStream, UnaryCall
from control_plane.triton.ports import CANCEL_AFTER_S, GrpcCall, Slot

_CLOSED = "Triton closed the connection"

_INDEX = "/inference.GRPCInferenceService/RepositoryIndex"
"""The only call with the control secret that passes through here; whether its caller may make it was decided
before.
"""

_LARGE_BYTES = 256 * 2**10
_CONNECT_TIMEOUT_S = 5.0
"""Time limit of an attempt to connect, whatever the deadlines of the calls that wait for it."""

_LIMITS = Http2Limits(stream_window_bytes=4 * 2**20, connection_window_bytes=64 * 2**20, max_header_bytes=64 * 2**10)
_FRAMES_AT_ONCE = 24
"""Frames that are read in one turn of the event loop: eight small responses, or a part of a large one."""
_LARGE_READS_AT_ONCE = 2
"""Large reads of answers in one turn, of 256 KB each. With one, which is what is read of requests, answers as large as those
pile up at Triton, which may send them all at once, a frame of each in turn."""


class _Lane(StrEnum):
    """Kind of calls that a connection is for."""

    __hash__ = str.__hash__  # Enum's own is written in Python, and every call looks for its lane

    SMALL = "small"
    LARGE = "large"
    STREAMS = "streams"


_SMALL, _LARGE = _Lane.SMALL, _Lane.LARGE  # once: in Python 3.11 to look up a member of an enum takes as long as a call


class _ConnectedTooLate(UpstreamUnavailable):
    """The deadline passed before there was a connection."""


class GrpcClient:
    """Implementation of `triton/ports.GrpcUpstream` over TCP or a Unix socket, with one current HTTP/2
    connection per lane.
    """

    def __init__(
        self,
        address: Address,
        *,
        control_secret: str = "",
        tls: ssl.SSLContext | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        forwarding: HeaderForwarding = NO_FORWARDING,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`headers` go with every call; `now_s` is the loop's time."""
        self._forwarding = forwarding
        self.max_answer_bytes = max_answer_bytes
        self._now_s = now_s
        self._tls = tls
        self._shown: Fields = tuple((name.encode(), value.encode()) for name, value in headers)
        self._control: Fields = ((GRPC_CONTROL_FIELD.encode(), control_secret.encode()),) if control_secret else ()
        self._address = address
        self._known = KnownBlocks()
        self._blocks = BoundedCache[GrpcHead, bytes]()
        self._lanes: dict[_Lane, _Connection] = {}
        self._connecting: dict[_Lane, asyncio.Task[_Connection | OSError]] = {}
        self._open: set[_Connection] = set()
        self._is_closed = False

    async def unary(self, call: GrpcCall, *, timeout_s: float, slot: Slot | None = None) -> GrpcAnswer:
        """Pass a unary call on, as `triton/ports.GrpcUpstream.unary` says."""
        now = self._now_s()
        deadline = now + timeout_s
        lane = _LARGE if len(call.frame) > _LARGE_BYTES else _SMALL
        try:
            connection = self._usable(lane) or await self._connect(lane, deadline)
        except UpstreamUnavailable as exc:
            # The caller gets DEADLINE_EXCEEDED only for its own deadline; a default limit of ours is no fault
            # of the caller's.
            is_too_late = isinstance(exc, _ConnectedTooLate) and call.head.timeout_s is not None
            code, details = (GrpcStatus.DEADLINE_EXCEEDED, "Deadline Exceeded") if is_too_late else (GrpcStatus.UNAVAILABLE, str(exc))
            return status_answer(code, details, loss=SendFailure.NOT_SENT)
        exchange = UnaryCall(connection, connection.loop, deadline)
        told_s = None
        if call.head.timeout_s is not None:
            # At a deadline that it knows, Triton's gRPC ends the call though the model goes on: it is told of a
            # later one, so that the end that is seen is the model's.
            told_s = timeout_s if slot is None else timeout_s + patience_s(timeout_s, slot.expected_s)
        if not connection.send_call(exchange, self._head_block(call.head, told_s), call.frame):
            return status_answer(GrpcStatus.UNAVAILABLE, _CLOSED, loss=SendFailure.NOT_SENT)
        if deadline < connection.timer.due_s:
            connection.timer.cover(deadline, connection.expire_calls)
        try:
            return await exchange.answer
        finally:
            if not exchange.has_ended:
                if slot is not None:
                    exchange.keep(slot)
                if slot is None or slot.is_superfluous:  # what another server has answered is not waited for
                    connection.loop.call_later(CANCEL_AFTER_S, exchange.cancel)
                else:
                    waited_s = self._now_s() - now
                    cancel_s = told_after_s(waited_s, slot.expected_s)
                    # One that heeds it has ended long before what it was expected to take.
                    free_s = min(patience_s(waited_s, slot.expected_s), 2 * cancel_s)
                    connection.loop.call_later(cancel_s, exchange.cancel, free_s - cancel_s)

    async def open_stream(self, head: GrpcHead, *, timeout_s: float) -> TritonStream:
        """Open a streaming call, as `triton/ports.GrpcUpstream.open_stream` says."""
        lane = _Lane.STREAMS
        connection = self._usable(lane) or await self._connect(lane, asyncio.get_running_loop().time() + timeout_s)
        stream = TritonStream(connection)
        if not connection.send_call(stream, self._head_block(head, None), None):
            raise UpstreamUnavailable(_CLOSED, is_not_sent=True)
        return stream

    async def close(self) -> None:
        """Close every connection; calls in flight, and those that wait for a connection, fail with
        UNAVAILABLE.
        """
        self._is_closed = True
        attempts = tuple(self._connecting.values())
        for attempt in attempts:
            attempt.cancel()
        if attempts:
            await asyncio.wait(attempts)
        for connection in tuple(self._open):
            connection.close()

    def _usable(self, lane: _Lane) -> _Connection | None:
        connection = self._lanes.get(lane)
        return connection if connection is not None and connection.may_open() else None

    async def _connect(self, lane: _Lane, deadline: float) -> _Connection:
        """Return the lane's next connection: an earlier one that has room for streams again, or a new one.

        A new one is made by a task of its own: a caller that leaves, or whose deadline is shorter than
        connecting takes, would otherwise end the attempt that others wait for. Raises UpstreamUnavailable.
        """
        while True:
            with_room = next((each for each in self._open if each.lane is lane and each.may_open()), None)
            if with_room is not None:
                self._lanes[lane] = with_room
                return with_room
            if self._is_closed:
                raise _closed_client()
            loop = asyncio.get_running_loop()
            attempt = self._connecting.get(lane)
            if attempt is None:
                attempt = self._connecting[lane] = loop.create_task(self._open_connection(lane), name=f"connect-{lane.value}")
            await asyncio.wait((attempt,), timeout=max(0.0, deadline - loop.time()))
            if not attempt.done():
                raise _ConnectedTooLate(f"cannot connect to Triton at {self._address}: timed out", is_not_sent=True)
            if attempt.cancelled():
                raise _closed_client()
            opened = attempt.result()
            if isinstance(opened, OSError):
                reason = f"cannot connect to Triton at {self._address}: {str(opened) or 'timed out'}"
                raise UpstreamUnavailable(reason, is_not_sent=True) from opened
            if not opened.is_open:
                raise UpstreamUnavailable(_CLOSED, is_not_sent=True)

    async def _open_connection(self, lane: _Lane) -> _Connection | OSError:
        """Open a new connection of a lane; an error is returned, since there may be nobody left to raise it
        to.
        """
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                connection = await open_connection(
                    lambda: _Connection(lane, self._open, self._known, self.max_answer_bytes), self._address, self._tls
                )
        except OSError as exc:  # TimeoutError is one too
            return exc
        finally:
            del self._connecting[lane]
        connection.opened()
        return connection

    def _head_block(self, head: GrpcHead, timeout_s: float | None) -> bytes:
        """Return the encoded headers, from a memo of equal heads; only the timeout is encoded for
        each call.
        """
        block = self._blocks.get(head)
        if block is None:
            control = self._control if head.method == _INDEX else ()
            block = encode_varying((*self._request_fields(head), *self._shown, *control))
            self._blocks.keep(head, block, size_bytes=len(block) + size_of(head.metadata))
        return block if timeout_s is None else block + encode_varying(((b"grpc-timeout", timeout_value(timeout_s)),))

    def _request_fields(self, head: GrpcHead) -> Fields:
        """Return the request headers that Triton is sent: pseudo-headers, and the metadata that it reads."""
        return (
            (b":method", b"POST"),
            (b":scheme", b"http" if self._tls is None else b"https"),
            (b":path", head.method.encode("latin-1")),
            (b":authority", self._address.authority.encode()),
            (b"te", b"trailers"),
            *(field for field in head.metadata if self._forwarding.passes(*field)),
        )


def _closed_client() -> UpstreamUnavailable:
    return UpstreamUnavailable("the connections to Triton have been closed", is_not_sent=True)


class _Connection(asyncio.Protocol):
    """HTTP/2 connection to Triton."""

    def __init__(self, lane: _Lane, open_: set[_Connection], known: KnownBlocks, max_answer_bytes: int) -> None:
        self.lane = lane
        self._all_open = open_
        self._transport: asyncio.Transport | None = None
        self._writer: PacedWriter
        self._is_behind = False
        """Whether more has come than is read in this turn of the loop; reading from the socket is paused then."""
        self._large_reads = 0
        """Large reads since it was last behind."""
        self.state = Http2Connection(known, _LIMITS)
        self.max_answer_bytes = max_answer_bytes
        self.loop = asyncio.get_running_loop()
        self.timer = DeadlineTimer(self.loop)
        """Of the unary calls in flight."""
        self._unwritten: list[Exchange] = []
        """Calls that will be written in the next turn of the event loop."""

    def expire_calls(self, now: float) -> float:
        """End the calls that are due; returns the deadline of the next (`DeadlineTimer`)."""
        next_s = inf
        for stream in tuple(self.state.streams.values()):
            exchange = cast("Exchange", stream.listener)
            if exchange.deadline <= now:
                exchange.expire()
            elif exchange.deadline < next_s:
                next_s = exchange.deadline
        return next_s

    def may_open(self) -> bool:
        return self._transport is not None and self.state.may_open()

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def send_call(self, exchange: Exchange, head_block: bytes, frame: MessageFrame | None) -> bool:
        """Open an HTTP/2 stream for a call; the `frame` of a unary call is sent with it. Returns whether it was
        sent.
        """
        if self._transport is None or self._transport.is_closing():  # a closing transport drops what it is given
            return False
        exchange.stream = self.state.open(exchange)
        self.state.send_headers(exchange.stream, head_block)
        if frame is not None:
            self.state.send_data(exchange.stream, frame, ends=True)
        if frame is None or len(self.state.streams) == 1:
            self._flush()
            return self._transport is not None
        # A call beside others: those that come in one turn of the loop go in one write, which takes as long as
        # each of theirs would.
        if not self._unwritten:
            self.loop.call_soon(self._flush)
        self._unwritten.append(exchange)
        return True

    def send_data(self, stream: Stream, frame: MessageFrame, *, ends: bool = False) -> None:
        self.state.send_data(stream, frame, ends=ends)
        self._flush()

    def consumed(self, stream: Stream, count: int) -> None:
        self.state.consumed(stream, count)
        self._flush()

    def cancel(self, stream: Stream) -> None:
        self.state.reset(stream, Code.CANCEL)
        self._flush()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by behaviour, not by class
        self._writer = PacedWriter(self._transport)
        self.state.start()
        self._flush()

    def opened(self) -> None:
        """Register the connection, once connecting has returned.

        In connection_made it would be too early: if connecting is cancelled after that, uvloop closes the
        connection without calling connection_lost, and it would stay registered.
        """
        if self._transport is not None:
            self._all_open.add(self)

    def data_received(self, data: bytes) -> None:
        self._read(data)

    def _read(self, data: bytes = b"") -> None:
        """Read a limited number of frames, or of bytes, per turn of the event loop: a burst of responses must not hold
        up everything else.
        """
        if self._transport is None:
            return
        try:
            is_behind = self.state.receive(data, _FRAMES_AT_ONCE) if data else self.state.go_on(_FRAMES_AT_ONCE)
        except Http2Error as exc:
            self.state.leave(exc.http2_code, str(exc))
            self.state.end_reason = f"it broke HTTP/2: {exc}"
            self._flush()
            self.close()
            return
        self._flush()
        if not self.is_open:
            return
        self._large_reads = self._large_reads + (len(data) >= LARGE_READ_BYTES) if data else 0
        is_behind = is_behind or self._large_reads == _LARGE_READS_AT_ONCE
        if is_behind is not self._is_behind:
            self._is_behind = is_behind
            (self._transport.pause_reading if is_behind else self._transport.resume_reading)()
        if is_behind:
            asyncio.get_running_loop().call_soon(self._read)
        elif self.state.peer_is_draining and not self.state.streams:
            self.close()

    def pause_writing(self) -> None:
        self._writer.pause()

    def resume_writing(self) -> None:
        self._writer.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writer.clear()
        self.timer.cancel()
        self._all_open.discard(self)
        self.state.end_reason = self.state.end_reason or str(exc or "")
        for exchange in self._unwritten:
            exchange.is_sent = False
        self.state.end()

    def _flush(self) -> None:
        transport = self._transport
        if transport is not None:
            try:
                if self.state.output:
                    self._writer.write(self.state.output)
            except RuntimeError as exc:  # uvloop's, of a transport that it has closed without connection_lost
                self.connection_lost(exc)
        self.state.output.clear()
        self._unwritten.clear()
