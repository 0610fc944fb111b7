"""One client's HTTP/2 connection on an asyncio transport: every stream on it is a gRPC call.

`protocols/http2/connection` keeps the protocol's state; this moves its bytes, and ends a client that breaks the protocol or
keeps a connection for nothing. Made by `frontends/grpc/server`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from control_plane.core.errors import PermissionDenied
from control_plane.core.principal import Principal
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.common.connection_limits import Network
from control_plane.frontends.common.connection_server import address_of, is_local
from control_plane.frontends.common.read_scheduler import ReadScheduler
from control_plane.frontends.grpc.call import Call, GrpcHandler
from control_plane.host.exposure import AllowedHosts
from control_plane.protocols.grpc import HEAD, GrpcAnswer, GrpcHead, MessageFrame
from control_plane.protocols.http2.connection import Http2Connection
from control_plane.protocols.http2.frames import Code, Http2Error
from control_plane.protocols.http2.headers import Fields, KnownBlocks, encode_fields, encode_varying
from control_plane.protocols.http2.limits import Http2Limits
from control_plane.protocols.http2.output import write_output
from control_plane.protocols.http2.stream import Stream, WholeAnswer, WholeCall

_log = logging.getLogger(__name__)

_FRAMES_AT_ONCE = 6
"""Of what has just come: those that open a connection and its first call, or three calls."""
_FRAMES_TO_GO_ON = 4
"""Of a connection that is behind, between two looks at the clock: two calls."""

_ENDED_AT_ONCE = 16
"""Calls of a connection that is over, in each turn of the loop."""

_LINGER_S = 1.0
"""For a client that broke the protocol to read why: closing on what it still sends resets the connection, and our reason is lost."""

_MAX_GOODBYE_S = 1.0
"""A client that has not acknowledged by then that we leave is taken to know it."""


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    max_message_bytes: int
    max_connections: int
    max_header_bytes: int = 16 * 2**10
    header_timeout_s: float = 10.0
    """For the connection preface."""
    body_timeout_s: float = 60.0
    """Without any progress of a message that has begun, or of an answer that the client makes no room for."""
    idle_timeout_s: float = 300.0
    """Of a connection without calls; 0 is never."""
    source_share: float = 1.0
    trusted_proxies: Sequence[Network] = ()
    """As `HttpLimits` has them."""


class GrpcApplication(Protocol):
    """What answers calls."""

    def handler_for(self, head: GrpcHead, *, peer: str, peer_is_local: bool) -> tuple[GrpcHandler, Principal]:
        """Raises a ControlPlaneError for a method that does not exist or is not for this caller."""

    def answer_known(self, call: WholeCall) -> WholeAnswer | None:
        """The answer to a call that was answered so before; None: read it."""


class ConnectionOwner(Protocol):
    """The server, as its connections see it."""

    application: GrpcApplication
    limits: GrpcLimits
    hosts: AllowedHosts | None
    budget: BodyBudget
    known_blocks: KnownBlocks
    reads: ReadScheduler

    def opened(self, connection: GrpcConnection, address: str) -> bool: ...

    def closed(self, connection: GrpcConnection) -> None: ...


class GrpcConnection(asyncio.Protocol):
    """`asyncio.Protocol`, and what its calls see of it (`frontends/grpc/call.CallConnection`)."""

    def __init__(self, server: ConnectionOwner, tasks: asyncio.TaskGroup) -> None:
        limits = server.limits
        self.tasks = tasks
        self.budget = server.budget
        self.max_message_bytes = limits.max_message_bytes
        self.body_timeout_s = limits.body_timeout_s
        self._server = server
        self._state = Http2Connection(
            server.known_blocks,
            Http2Limits(max_header_bytes=limits.max_header_bytes),
            accept=self._accept,
            answer_known=server.application.answer_known,
        )
        self._transport: asyncio.Transport | None = None
        self._peer, self._peer_is_local = "", False
        self._is_receiving = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._quiet_since_s = self._written_s = asyncio.get_running_loop().time()
        self._last_stream = self._unwritten_bytes = 0
        self._leaves_at_s: float | None = None
        self._is_behind = False
        """Whether more has come than has been read."""
        self._is_paused = False
        """Whether the socket is not read."""
        self._closing: asyncio.TimerHandle | None = None
        """Set when the client has broken the protocol: nothing more is read of it."""
        self._is_half_closed = False

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by behaviour, not by class
        self._peer, self._peer_is_local = address_of(transport), is_local(transport)
        if not self._server.opened(self, self._peer):
            self._transport.abort()
            return
        self._state.start()
        self._flush()

    def data_received(self, data: bytes) -> None:
        if self._closing is None and self._read(data):
            self._is_behind = True
            self._pause_as_needed()
            self._server.reads.add(self)

    def read_on(self, until_s: float) -> bool:
        """As `read_scheduler.Reading`."""
        if self._is_over:
            has_more = self._state.end(_ENDED_AT_ONCE)
            self._flush()
            return has_more
        if not self._writable.is_set():  # `resume_writing` takes it up again
            return False
        self._is_behind = self._read(None, until_s)
        self._pause_as_needed()
        return self._is_behind

    def _read(self, data: bytes | None, until_s: float = 0.0) -> bool:
        """Read the first of `data`, or on in what came before; whether more is left. What is answered at once is written at once."""
        state = self._state
        self._is_receiving = True
        try:
            is_behind = state.go_on(_FRAMES_TO_GO_ON) if data is None else state.receive(data, _FRAMES_AT_ONCE)
            while is_behind and self._server.reads.now_s() < until_s:
                is_behind = state.go_on(_FRAMES_TO_GO_ON)
        except Http2Error as exc:
            is_behind = False
            self._break_off(exc)
        finally:
            self._is_receiving = False
        self._flush()
        return is_behind

    @property
    def _is_over(self) -> bool:
        """Whether nothing more is read: the client has left, or has broken the protocol."""
        return self._transport is None or self._closing is not None

    def _end_streams(self) -> None:
        """Cancel its calls; a thousand together would take 50 ms, in which nobody is served, so most of them in later turns of the loop."""
        self._server.reads.remove(self)
        if self._state.end(_ENDED_AT_ONCE):
            self._server.reads.add(self)

    def _break_off(self, error: Http2Error) -> None:
        """Tell the client what it did, and read no more of it."""
        self._state.leave(error.http2_code, str(error))
        self._end_streams()
        self._closing = asyncio.get_running_loop().call_later(_LINGER_S, self.abort)
        self._pause_as_needed()

    def eof_received(self) -> bool:
        return False  # a client that stops sending has left: close, which cancels its calls

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writable.set()
        if self._closing is not None:
            self._closing.cancel()
        self._end_streams()
        self._server.closed(self)

    def pause_writing(self) -> None:
        """A client that does not read: neither will we, so that what it asks for cannot pile up here."""
        self._writable.clear()
        self._pause_as_needed()

    def resume_writing(self) -> None:
        self._writable.set()
        self._pause_as_needed()
        if self._is_behind:
            self._server.reads.add(self)

    def _pause_as_needed(self) -> None:
        must_pause = self._is_behind or self._closing is not None or not self._writable.is_set()
        if self._transport is None or must_pause is self._is_paused:
            return
        self._is_paused = must_pause
        if must_pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # For the server

    def leave(self) -> None:
        """Take no new calls and close when those under way have ended; until the client knows, more may come and are taken."""
        if self._closing is not None:
            self.abort()
        elif self._leaves_at_s is None:
            self._leaves_at_s = asyncio.get_running_loop().time() + _MAX_GOODBYE_S
            self._state.announce_leaving()
            self._flush()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def check_time(self, now_s: float) -> None:
        """To be called now and then: ends what takes too long."""
        limits, state = self._server.limits, self._state
        for stream in tuple(state.streams.values()):
            cast("Call", stream.listener).check(now_s)
        state.calm()
        if state.streams or state.last_peer_stream != self._last_stream:
            self._last_stream, self._quiet_since_s = state.last_peer_stream, now_s
        quiet_s = now_s - self._quiet_since_s
        if self._reads_nothing(now_s) or (state.awaits_preface and quiet_s > limits.header_timeout_s):
            self.abort()
        elif self._leaves_at_s is not None and now_s > self._leaves_at_s:
            state.leave()
            self._flush()
        elif limits.idle_timeout_s and quiet_s > limits.idle_timeout_s:
            self.leave()

    def _reads_nothing(self, now_s: float) -> bool:
        """Whether the client has long not taken what is written; it would keep its memory, and a closed connection open."""
        unwritten = self._transport.get_write_buffer_size() if self._transport is not None else 0
        if not unwritten or unwritten != self._unwritten_bytes:
            self._unwritten_bytes, self._written_s = unwritten, now_s
        return now_s - self._written_s > self._server.limits.body_timeout_s

    # CallConnection

    def handler_for(self, head: GrpcHead) -> tuple[GrpcHandler, Principal]:
        hosts = self._server.hosts
        if hosts is not None and self._peer:  # no web page reaches a Unix socket
            reason = hosts.refusal(head.authority, head.fetch_site)
            if reason is not None:
                raise PermissionDenied(reason)
        return self._server.application.handler_for(head, peer=self._peer, peer_is_local=self._peer_is_local)

    def answer(self, stream: Stream, answer: GrpcAnswer) -> None:
        """Write a whole answer; what the client's window has no room for follows by itself."""
        if stream.local_is_closed:  # the client has given up
            return
        state = self._state
        if answer.headers:
            state.send_headers(stream, encode_fields(answer.headers))
        for piece in answer.body:
            state.send_data(stream, piece)
        state.send_headers(stream, (encode_varying if answer.code else encode_fields)(answer.trailers), ends=True)
        self._flush()

    def send(self, stream: Stream, frame: MessageFrame, headers: Fields | None) -> None:
        """Write one message of a streaming call, behind its head when `headers` are given."""
        if stream.local_is_closed:
            return
        if headers is not None:
            self._state.send_headers(stream, encode_fields(headers or HEAD))
        self._state.send_data(stream, frame)
        self._flush()

    def reset(self, stream: Stream) -> None:
        self._state.reset(stream, Code.ENHANCE_YOUR_CALM)  # to gRPC: RESOURCE_EXHAUSTED, of bandwidth
        self._flush()

    def consumed(self, stream: Stream, count: int) -> None:
        self._state.consumed(stream, count)
        self._flush()

    async def writable(self) -> None:
        if not self._writable.is_set():
            await self._writable.wait()

    def _accept(self, stream: Stream) -> Call:
        return Call(self, stream)

    def _flush(self) -> None:
        output = self._state.output
        if self._is_receiving:
            return  # once, behind everything that arrived together
        if output and self._transport is not None:
            write_output(self._transport, output)
        output.clear()
        if self._state.is_leaving and not self._state.streams and self._transport is not None:
            self._close(self._transport)

    def _close(self, transport: asyncio.Transport) -> None:
        if self._closing is None:
            transport.close()
        elif transport.can_write_eof() and not self._is_half_closed:  # TLS cannot: it closes when the client does, or the time is over
            self._is_half_closed = True
            transport.write_eof()
