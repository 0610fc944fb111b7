"""One client's HTTP/2 connection on an asyncio transport; each stream on it is a gRPC call.

`protocols/http2/connection` is the protocol engine. This module moves its bytes, applies back-pressure, and
closes connections that break the protocol or stay idle. Made by `frontends/grpc/server`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sized
from typing import Protocol, cast

from control_plane.concurrency.turn_writes import TurnWrites
from control_plane.core.errors import ControlPlaneError, PermissionDenied
from control_plane.core.principal import Principal
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.common.connection_server import address_of, is_local
from control_plane.frontends.common.read_scheduler import LARGE_READ_BYTES, MOST_BEGUN, ReadScheduler, WaitingRequest
from control_plane.frontends.grpc.arrivals import Arrivals
from control_plane.frontends.grpc.call import Call
from control_plane.frontends.grpc.handler import GrpcApplication, GrpcHandler
from control_plane.frontends.grpc.limits import GrpcLimits
from control_plane.frontends.grpc.unparsed_answers import UnparsedAnswers
from control_plane.host.network.exposure import AllowedHosts
from control_plane.protocols.grpc import HEAD, GrpcAnswer, GrpcHead, MessageFrame
from control_plane.protocols.http2.connection import Http2Connection
from control_plane.protocols.http2.frames import Code, Http2Error
from control_plane.protocols.http2.headers import Fields, KnownBlocks, encode_fields, encode_varying
from control_plane.protocols.http2.limits import Http2Limits
from control_plane.protocols.http2.output import write_output
from control_plane.protocols.http2.stream import Stream

_log = logging.getLogger(__name__)

_FRAMES_AT_ONCE = 6
"""Frames handled as they arrive: enough to open a connection with its first call, or for three calls."""
_BACKLOG_FRAMES_AT_ONCE = 2
"""Frames of a backlog between two looks at the clock: a call. Two heads of 90 fields take the time of all in a turn, a look 0.2 us."""

_ENDED_AT_ONCE = 16
"""Calls of an ended connection that are cancelled in each turn of the loop."""

_LINGER_S = 1.0
"""Seconds for a client that broke the protocol to read why: closing a socket with unread bytes resets it, GOAWAY and all."""

_MAX_GOAWAY_WAIT_S = 1.0
"""Seconds after which a client that has not acknowledged our first GOAWAY is taken to have read it."""


class ConnectionHost(Protocol):
    """Port of a connection to its server."""

    application: GrpcApplication
    limits: GrpcLimits
    hosts: AllowedHosts | None
    budget: BodyBudget
    known_blocks: KnownBlocks
    reads: ReadScheduler
    writes: TurnWrites

    @property
    def connected(self) -> Sized:
        """The connections that are open."""

    def opened(self, connection: GrpcConnection, address: str) -> bool: ...

    def closed(self, connection: GrpcConnection) -> None: ...

    def begin_reading(self, connection: GrpcConnection, transport: asyncio.Transport) -> None: ...

    def breached(self, connection: GrpcConnection) -> None: ...


class GrpcConnection(asyncio.Protocol):
    """Server side of one gRPC connection; the port of its calls too (`frontends/grpc/call.CallConnection`)."""

    def __init__(self, server: ConnectionHost, tasks: asyncio.TaskGroup) -> None:
        limits = server.limits
        self.tasks = tasks
        self.budget = server.budget
        self.max_message_bytes = limits.max_message_bytes
        self.body_timeout_s = limits.body_timeout_s
        self.uncounted_bytes = 0
        self._server = server
        self.arrivals = Arrivals(lambda: self._state.unread_bytes)
        self.unparsed = UnparsedAnswers(server.application.verbatim_answers(max_header_bytes=limits.max_header_bytes), self.arrivals)
        self._state = Http2Connection(
            server.known_blocks,
            Http2Limits(max_header_bytes=limits.max_header_bytes),
            accept=self._accept,
            answer_verbatim=self.unparsed.answer,
            refuse_head=self.unparsed.refuse_head,
        )
        self._transport: asyncio.Transport | None = None
        self._peer, self._peer_is_local = "", False
        self._is_receiving = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._quiet_since_s = self._written_s = asyncio.get_running_loop().time()
        self._last_stream = 0
        self._written_bytes = self._read_bytes = self._read_step = 0
        """Bytes written so far, those of them that the client had read when it last made progress, and how many more are
        progress: a sixteenth of what it had not read."""
        self._leaves_at_s: float | None = None
        self._has_backlog = False
        """Whether there is a backlog: more data has arrived than has been handled."""
        self._unbegun = 0
        """Calls whose work has not begun, since that of many others has in their turn."""
        self._has_read_much = False
        """Whether the socket is not read until the scheduler says so (`read_scheduler.PausedConnection`)."""
        self._is_paused = False
        """Whether reading of the socket is paused."""
        self._closing: asyncio.TimerHandle | None = None
        """Set when the client has broken the protocol: nothing more is read, and the timer closes the connection."""
        self._is_half_closed = False
        self._is_put_off = False
        """Whether answers wait in the engine's output for the end of this turn of the loop."""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by behaviour, not by class
        self._peer, self._peer_is_local = address_of(transport), is_local(transport)
        if not self._server.opened(self, self._peer):
            self._transport.abort()
            return
        self._server.begin_reading(self, self._transport)
        self._state.start()
        self.flush()

    def data_received(self, data: bytes) -> None:
        if self._closing is not None:
            return
        if len(data) >= LARGE_READ_BYTES:
            self._has_read_much = True
            self._server.reads.put_off(self)
            self._pause_as_needed()
        arrivals = self.arrivals
        if arrivals.are_timed:
            arrivals.read(len(data), asyncio.get_running_loop().time())
        self._has_backlog = self._read(data)
        self.flush()
        if self._has_backlog:
            arrivals.began_backlog(asyncio.get_running_loop().time())
            self._pause_as_needed()
            self._server.reads.add(self)
            return
        arrivals.are_timed = False
        if not self._has_read_much:
            self._server.reads.kept_up = self

    def read_socket(self) -> None:
        """See `read_scheduler.PausedConnection`."""
        self._has_read_much = False
        self._pause_as_needed()

    def read_backlog(self, until_s: float) -> bool:
        """Handle the backlog for a while; see `read_scheduler.BackloggedConnection`."""
        if self.is_over:
            has_more = self._state.end(_ENDED_AT_ONCE)
            self.flush()
            return has_more
        if self._unbegun or not self._writable.is_set():  # `has_begun` and `resume_writing` schedule this connection again
            return False
        self._has_backlog = self._read(None, until_s)
        if not self._has_backlog:
            self.arrivals.ended_backlog(asyncio.get_running_loop().time())
            self.unparsed.forget_heads()
        self._flush_soon()
        self._pause_as_needed()
        return self._has_backlog

    def _read(self, data: bytes | None, until_s: float = 0.0) -> bool:
        """Handle the first frames of `data`, or more of the backlog; returns whether more is left.

        Answers that are made meanwhile are collected, to be flushed afterwards.
        """
        state = self._state
        self._is_receiving = True
        try:
            has_backlog = state.go_on(_BACKLOG_FRAMES_AT_ONCE) if data is None else state.receive(data, _FRAMES_AT_ONCE)
            while has_backlog and not self._unbegun and self._server.reads.now_s() < until_s:
                has_backlog = state.go_on(_BACKLOG_FRAMES_AT_ONCE)
        except Http2Error as exc:
            has_backlog = False
            self._break_off(exc)
        finally:
            self._is_receiving = False
        return has_backlog

    @property
    def is_over(self) -> bool:
        """See `read_scheduler.BackloggedConnection`: because the client has disconnected or has broken the protocol."""
        return self._transport is None or self._closing is not None

    def _end_streams(self) -> None:
        """Cancel the calls, most of them in later turns of the loop: a thousand at once would block it for 50 ms."""
        self._server.reads.remove(self)
        self.unparsed.forget_heads()
        if self._state.end(_ENDED_AT_ONCE):
            self._server.reads.add(self)

    def _break_off(self, error: Http2Error) -> None:
        """Tell the client how it broke the protocol (GOAWAY), and read nothing more from it."""
        self._server.breached(self)
        self._state.leave(error.http2_code, str(error))
        self._end_streams()
        self._closing = asyncio.get_running_loop().call_later(_LINGER_S, self.abort)
        self._pause_as_needed()

    def eof_received(self) -> bool:
        return False  # a half-closed connection counts as a client that has left: close it, which cancels its calls

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writable.set()  # wakes calls that wait in `writable`, to be cancelled or to end
        if self._closing is not None:
            self._closing.cancel()
        self._end_streams()
        self._server.closed(self)

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read, so that answers to it cannot pile up here."""
        self._writable.clear()
        self._pause_as_needed()

    def resume_writing(self) -> None:
        self._writable.set()
        self._pause_as_needed()
        self._schedule_backlog()

    def _schedule_backlog(self) -> None:
        if self._has_backlog and self._transport is not None:
            self._server.reads.add(self)

    def _pause_as_needed(self) -> None:
        must_pause = (
            self._has_backlog or self._has_read_much or self._unbegun > 0 or self._closing is not None or not self._writable.is_set()
        )
        if self._transport is None or must_pause is self._is_paused:
            return
        self._is_paused = must_pause
        if must_pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # For the server

    @property
    def is_idle(self) -> bool:
        """See `connection_server.Connection`: no call is open, and the client has read what was written."""
        is_busy = self._state.streams or self._is_put_off or self._has_backlog or self._closing is not None
        return not is_busy and self._writable.is_set()

    def leave(self) -> None:
        """Drain: announce it (GOAWAY), and close when the open calls have ended.

        Calls that arrive until the client has read the announcement are still accepted (RFC 9113, 6.8).
        """
        if self._closing is not None:
            self.abort()
        elif self._leaves_at_s is None:
            self._leaves_at_s = asyncio.get_running_loop().time() + _MAX_GOAWAY_WAIT_S
            self._state.announce_drain()
            self.flush()

    def refuse_rest(self, error: ControlPlaneError) -> None:
        """End of the drain: end each call with `error`, and close when the client has been sent that.

        A call whose client does not read what it has been sent cannot be told more.
        """
        for stream in tuple(self._state.streams.values()):
            if not stream.pending:
                cast("Call", stream.listener).refuse(error)
        self._state.leave()
        self.flush()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def enforce_timeouts(self, now_s: float) -> None:
        """Enforce the time-outs of the connection and its calls; called about once a second."""
        limits, state = self._server.limits, self._state
        for stream in tuple(state.streams.values()):
            cast("Call", stream.listener).check(now_s)
        state.on_second()
        if state.streams or state.last_peer_stream_id != self._last_stream:
            self._last_stream, self._quiet_since_s = state.last_peer_stream_id, now_s
        quiet_s = now_s - self._quiet_since_s
        if self._reads_nothing(now_s) or (state.awaits_preface and quiet_s > limits.header_timeout_s):
            self.abort()
        elif self._leaves_at_s is not None and now_s > self._leaves_at_s:
            state.leave()
            self.flush()
        elif limits.idle_timeout_s and quiet_s > limits.idle_timeout_s:
            self.leave()

    def _reads_nothing(self, now_s: float) -> bool:
        """Whether the client has not read for too long; it would hold memory, and keep a closing connection open."""
        unwritten = self._transport.get_write_buffer_size() if self._transport is not None else 0
        read = self._written_bytes - unwritten
        if not unwritten or read - self._read_bytes >= self._read_step:
            self._read_bytes, self._read_step, self._written_s = read, max(unwritten // 16, 1), now_s
        return now_s - self._written_s > self._server.limits.body_timeout_s

    # CallConnection

    @property
    def is_leaving(self) -> bool:
        return self._leaves_at_s is not None

    def handler_for(self, head: GrpcHead) -> tuple[GrpcHandler, Principal]:
        hosts = self._server.hosts
        if hosts is not None and self._peer:  # against DNS rebinding; no web page can reach a Unix socket
            reason = hosts.refusal(head.authority, head.fetch_site)
            if reason is not None:
                raise PermissionDenied(reason)
        return self._server.application.handler_for(head, peer=self._peer, peer_is_local=self._peer_is_local)

    def begin(self, call: WaitingRequest) -> bool:
        if not self._has_backlog and max(len(self._state.streams), len(self._server.connected)) <= MOST_BEGUN:
            call.begin()
        elif not self._server.reads.begin(call):
            self._unbegun += 1
            self._pause_as_needed()
            return False
        return True

    def has_begun(self) -> None:
        self._unbegun -= 1
        if not self._unbegun:
            self._pause_as_needed()
            self._schedule_backlog()

    def answer(self, stream: Stream, answer: GrpcAnswer) -> None:
        """Write a whole answer; the engine sends the rest when the client opens its window."""
        if stream.local_is_closed:  # the client has cancelled the call
            return
        state = self._state
        if answer.headers:
            state.send_headers(stream, encode_fields(answer.headers))
        for piece in answer.body:
            state.send_data(stream, piece)
        # The text of an error hardly recurs: remembered, it would displace trailers that do.
        state.send_headers(stream, (encode_varying if answer.code else encode_fields)(answer.trailers), ends=True)
        self._flush_soon()

    def send(self, stream: Stream, frame: MessageFrame, headers: Fields | None) -> None:
        """Write one message of a streaming call; with `headers`, after the response head."""
        if stream.local_is_closed:
            return
        if headers is not None:
            self._state.send_headers(stream, encode_fields(headers or HEAD))
        self._state.send_data(stream, frame)
        self.flush()

    def reset(self, stream: Stream) -> None:
        self._state.reset(stream, Code.ENHANCE_YOUR_CALM)  # gRPC maps it to RESOURCE_EXHAUSTED
        self.flush()

    def consumed(self, stream: Stream, count: int) -> None:
        self._state.consumed(stream, count)
        self.flush()

    async def writable(self) -> None:
        if not self._writable.is_set():
            await self._writable.wait()

    def _accept(self, stream: Stream) -> Call:
        return Call(self, stream)

    def _flush_soon(self) -> None:
        """Flush at the end of this turn of the loop, with the answers to others; at once if there are none."""
        if len(self._server.connected) == 1 and not self._state.streams:
            self.flush()
        elif not self._is_put_off:
            self._is_put_off = True
            self._server.writes.put_off(self)

    def flush(self) -> None:
        """Write the engine's output; see also `turn_writes.Unsent`."""
        output = self._state.output
        if self._is_receiving:
            return  # `_read` writes once, after all frames that arrived together
        self._is_put_off = False
        if output and self._transport is not None:
            self._written_bytes += write_output(self._transport, output)
        output.clear()
        if self._state.is_leaving and not self._state.streams and self._transport is not None:
            self._close(self._transport)

    def _close(self, transport: asyncio.Transport) -> None:
        if self._closing is None:
            transport.close()
        elif transport.can_write_eof() and not self._is_half_closed:  # TLS cannot half-close; there the timer closes it
            self._is_half_closed = True
            transport.write_eof()
