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

from control_plane.core.algorithms.bounded_cache import BoundedCache
from control_plane.core.endpoints import GRPC_CONTROL_FIELD, Address
from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.infer_call import SendFailure
from control_plane.protocols.grpc import (
    GrpcAnswer,
    GrpcHead,
    GrpcStatus,
    status_answer,
    timeout_value,
)
from control_plane.protocols.header_forwarding import NO_FORWARDING, TIME_LEFT_FIELD, HeaderForwarding, time_left_value
from control_plane.protocols.http2.headers import Fields, KnownBlocks, encode_varying, size_of
from control_plane.triton.adapters.abandoned import patience_s, told_after_s
from control_plane.triton.adapters.connecting import MAX_ANSWER_BYTES, open_connection
from control_plane.triton.adapters.grpc.calls import TritonStream, UnaryCall
from control_plane.triton.adapters.grpc.connection import GrpcConnection, Lane
from control_plane.triton.ports import CANCEL_AFTER_S, GrpcCall, Slot

_CLOSED = "Triton closed the connection"

_INDEX = "/inference.GRPCInferenceService/RepositoryIndex"
"""The only call with the control secret that passes through here; whether its caller may make it was decided
before.
"""

_LARGE_BYTES = 256 * 2**10
_CONNECT_TIMEOUT_S = 5.0
"""Time limit of an attempt to connect, whatever the deadlines of the calls that wait for it."""

_SMALL, _LARGE = Lane.SMALL, Lane.LARGE  # once: in Python 3.11 to look up a member of an enum takes as long as a call


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
        connect_timeout_s: float = _CONNECT_TIMEOUT_S,
    ) -> None:
        """`headers` go with every call."""
        self._forwarding = forwarding
        self.max_answer_bytes = max_answer_bytes
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls
        self._shown: Fields = tuple((name.encode(), value.encode()) for name, value in headers)
        self._control: Fields = ((GRPC_CONTROL_FIELD.encode(), control_secret.encode()),) if control_secret else ()
        self._address = address
        self._known = KnownBlocks()
        self._blocks = BoundedCache[GrpcHead, bytes]()
        self._lanes: dict[Lane, GrpcConnection] = {}
        self._connecting: dict[Lane, asyncio.Task[GrpcConnection | OSError]] = {}
        self._open: set[GrpcConnection] = set()
        self._is_closed = False

    async def unary(self, call: GrpcCall, *, timeout_s: float, slot: Slot | None = None) -> GrpcAnswer:
        """Pass a unary call on, as `triton/ports.GrpcUpstream.unary` says."""
        now = time.monotonic()
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
        exchange = UnaryCall(connection, connection.loop, deadline, most_bytes=call.most_answer_bytes)
        told_s = None
        if call.head.timeout_s is not None:
            # At a deadline that it knows, Triton's gRPC ends the call though the model goes on: it is told of a
            # later one, so that the end that is seen is the model's.
            told_s = timeout_s if slot is None else timeout_s + patience_s(timeout_s, slot.expected_s)
        left_s = deadline - time.monotonic() if slot is not None and slot.tells_time_left else None
        if not connection.send_call(exchange, self._head_block(call.head, told_s, left_s), call.frame):
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
                    waited_s = time.monotonic() - now
                    cancel_s = told_after_s(waited_s, slot.expected_s)
                    # One that heeds it has ended long before what it was expected to take.
                    free_s = min(patience_s(waited_s, slot.expected_s), 2 * cancel_s)
                    connection.loop.call_later(cancel_s, exchange.cancel, free_s - cancel_s)

    async def open_stream(self, head: GrpcHead, *, timeout_s: float) -> TritonStream:
        """Open a streaming call, as `triton/ports.GrpcUpstream.open_stream` says."""
        lane = Lane.STREAMS
        connection = self._usable(lane) or await self._connect(lane, asyncio.get_running_loop().time() + timeout_s)
        stream = TritonStream(connection)
        if not connection.send_call(stream, self._head_block(head, None), None):
            raise UpstreamUnavailable(_CLOSED, is_not_sent=True)
        return stream

    def keep_alive(self, silent_s: float) -> None:
        """Ping each connection that has said nothing for half of that time, and close those that have for all of it: of one that a
        firewall or a balancer has forgotten, the calls would be lost for as long as TCP tries."""
        for connection in tuple(self._open):
            connection.keep_alive(silent_s)

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

    def _usable(self, lane: Lane) -> GrpcConnection | None:
        connection = self._lanes.get(lane)
        return connection if connection is not None and connection.may_open() else None

    async def _connect(self, lane: Lane, deadline: float) -> GrpcConnection:
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

    async def _open_connection(self, lane: Lane) -> GrpcConnection | OSError:
        """Open a new connection of a lane; an error is returned, since there may be nobody left to raise it
        to.
        """
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                connection = await open_connection(
                    lambda: GrpcConnection(lane, self._open, self._known, self.max_answer_bytes), self._address, self._tls
                )
        except OSError as exc:  # TimeoutError is one too
            return exc
        finally:
            del self._connecting[lane]
        connection.opened()
        return connection

    def _head_block(self, head: GrpcHead, timeout_s: float | None, left_s: float | None = None) -> bytes:
        """Return the encoded headers, from a memo of equal heads; only the timeout, and the time left for its model, are encoded for
        each call.
        """
        block = self._blocks.get(head)
        if block is None:
            control = self._control if head.method == _INDEX else ()
            block = encode_varying((*self._request_fields(head), *self._shown, *control))
            self._blocks.keep(head, block, size_bytes=len(block) + size_of(head.metadata))
        if timeout_s is not None:
            block += encode_varying(((b"grpc-timeout", timeout_value(timeout_s)),))
        return block if left_s is None else block + encode_varying(((TIME_LEFT_FIELD, time_left_value(left_s)),))

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
