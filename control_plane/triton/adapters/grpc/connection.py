"""HTTP/2 connection to Triton's gRPC port, with many calls at a time; its client is `triton/adapters/grpc`."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from math import inf
from typing import cast

from control_plane.concurrency.deadline_timer import DeadlineTimer
from control_plane.concurrency.paced_writes import PacedWriter
from control_plane.protocols.grpc import MessageFrame
from control_plane.protocols.http2.connection import Http2Connection
from control_plane.protocols.http2.frames import KEEPALIVE_PING, Code, Http2Error, ping
from control_plane.protocols.http2.headers import KnownBlocks
from control_plane.protocols.http2.limits import Http2Limits
from control_plane.protocols.http2.stream import Stream
from control_plane.triton.adapters.connecting import LARGE_READ_BYTES
from control_plane.triton.adapters.grpc.calls import Exchange

_LIMITS = Http2Limits(stream_window_bytes=4 * 2**20, connection_window_bytes=64 * 2**20, max_header_bytes=64 * 2**10)
_FRAMES_AT_ONCE = 24
"""Frames that are read in one turn of the event loop: eight small responses, or a part of a large one."""
_LARGE_READS_AT_ONCE = 2
"""Large reads of answers in one turn, of 256 KB each. With one, which is what is read of requests, answers as large as those
pile up at Triton, which may send them all at once, a frame of each in turn."""


class Lane(StrEnum):
    """Kind of calls that a connection is for."""

    __hash__ = str.__hash__  # Enum's own is written in Python, and every call looks for its lane

    SMALL = "small"
    LARGE = "large"
    STREAMS = "streams"


class GrpcConnection(asyncio.Protocol):
    """HTTP/2 connection to Triton."""

    def __init__(self, lane: Lane, open_: set[GrpcConnection], known: KnownBlocks, max_answer_bytes: int) -> None:
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
        """Timer of the deadlines of all unary calls in flight."""
        self._unwritten: list[Exchange] = []
        """Calls that will be written in the next turn of the event loop."""
        self._heard_s = self.loop.time()
        """When something came last, or the connection was made."""

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

    def keep_alive(self, silent_s: float) -> None:
        """Close the connection if nothing has come for so long, and ask for a sign of life before."""
        unheard_s = self.loop.time() - self._heard_s
        if unheard_s >= silent_s:
            self.state.end_reason = "it says nothing"
            self.close()
        elif unheard_s >= silent_s / 2:
            self.state.output.append(ping(KEEPALIVE_PING))
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
        self._heard_s = self.loop.time()
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
