"""HTTP client of Triton: a connection pool of keep-alive connections, with one request at a time on each.

It is the hot path of the HTTP frontend, and therefore uses asyncio transports directly. It never retries:
whether an inference may run twice is the caller's decision.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

from control_plane.concurrency.turn_writes import TurnWrites
from control_plane.concurrency.weighted_semaphore import WeightedSemaphore
from control_plane.core.endpoints import CONTROL_FIELD, Address
from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.protocols.header_forwarding import NO_FORWARDING, HeaderForwarding
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, upstream_pieces
from control_plane.triton.adapters.abandoned import patience_s
from control_plane.triton.adapters.connecting import MAX_ANSWER_BYTES, open_connection
from control_plane.triton.adapters.http.connection import HttpConnection
from control_plane.triton.adapters.http.large_json import HELD_UP_S, LARGE_JSON_BYTES, comes_to_be_parsed, has_large_json
from control_plane.triton.adapters.http.stream import TritonHttpStream
from control_plane.triton.ports import Slot

_REPOSITORY = b"/v2/repository/"
"""Path prefix of the calls that need the control secret."""

OPENED_TOGETHER = 32
"""Connections that are opened at a time where requests need one. Triton gives each new connection to the first
of its HTTP threads that has none to take over just then: opened one by one all would share one thread, and wait
for each other's JSON to be parsed.
"""

_OPENING_S = 0.05
"""Time that a request grants the connections opened beside its own; on one machine they take a few milliseconds."""

_OTHERS_EVERY_S = 10.0
"""Time between openings of connections beside large JSON; each kept connection that large JSON is sent on needs one."""

_KEPT_FREE = 8
"""One of so many connections is not for inference: health and metadata answer whatever the models do."""


class HttpClient:
    """Connection pool that implements `triton/ports.HttpUpstream`, over TCP or a Unix socket."""

    def __init__(
        self,
        address: Address,
        *,
        max_connections: int,
        control_secret: str = "",
        tls: ssl.SSLContext | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        forwarding: HeaderForwarding = NO_FORWARDING,
        opened_together: int = 1,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        connect_timeout_s: float = inf,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`headers` go with every request; `now_s` is the loop's time. Over TLS connections are opened one by one."""
        self._address = address
        self._max_connections = max_connections
        self._opened_together = 1 if tls is not None else opened_together
        self._is_opening_more = False
        self._tls = tls
        shown = "".join(f"\r\n{name}: {value}" for name, value in headers)
        self._host_field = f"{address.authority}{shown}".encode()
        self._control_field = f"\r\n{CONTROL_FIELD}: {control_secret}".encode() if control_secret else b""
        self._forwarding = forwarding
        self._connect_timeout_s = connect_timeout_s
        self._now_s = now_s
        self.max_answer_bytes = max_answer_bytes
        self.writes = TurnWrites()
        self.idle: list[HttpConnection] = []
        """The last one is next; large JSON takes the first one, and so always the same. Connections that it seems to
        hold up are put beside it: of which thread a connection is Triton does not say."""
        self._large_json = 0
        """Requests with large JSON in flight."""
        self._others_from_s = 0.0
        """When connections may be opened beside large JSON again (`_open_others`)."""
        self.open: set[HttpConnection] = set()
        self._allowed = WeightedSemaphore(max_connections)
        self._allowed_inference = WeightedSemaphore(max(1, max_connections - max_connections // _KEPT_FREE))
        self._is_closed = False

    def send(self, request: HttpRequest, *, timeout_s: float, slot: Slot | None = None) -> Coroutine[Any, Any, HttpAnswer]:
        """Send one request and return its whole response, as `triton/ports.HttpUpstream.send` says."""
        return self._ask(request, timeout_s, slot, False)  # type: ignore[return-value]  # no stream, since it takes none

    def stream(
        self, request: HttpRequest, *, timeout_s: float, slot: Slot | None = None
    ) -> Coroutine[Any, Any, HttpAnswer | TritonHttpStream]:
        """Send one request and return its response, whole or as a stream, as
        `triton/ports.HttpUpstream.stream` says.
        """
        return self._ask(request, timeout_s, slot, True)

    async def _ask(self, request: HttpRequest, timeout_s: float, slot: Slot | None, takes_stream: bool) -> HttpAnswer | TritonHttpStream:
        # One coroutine from here to the socket: each more is passed through twice by every request.
        now = self._now_s()
        deadline = now + timeout_s
        # Permission before a connection: so there are never more connections than allowed.
        if not (self._allowed.try_acquire() if slot is None else self._allowed.try_acquire_both(self._allowed_inference)):
            await self._allow(slot is not None, deadline)
        connection: HttpConnection | None = None
        is_large = len(request.body) > LARGE_JSON_BYTES and has_large_json(request)
        is_beside_large = self._large_json > 0
        if is_large:
            self._large_json += 1
        try:
            if self._is_closed:
                raise UpstreamUnavailable("the connections to Triton have been closed", is_not_sent=True)
            connection = self.idle.pop(0 if is_large else -1) if self.idle else await self._connect(deadline)
            # Whether such a call may be sent was decided before: loads and unloads go through `models/model_service`.
            is_control = slot is None and request.target.startswith(_REPOSITORY)
            host = self._host_field + self._control_field if is_control else self._host_field
            left_s = deadline - self._now_s() if slot is not None and slot.tells_time_left else None
            pieces = upstream_pieces(request, host, self._forwarding, left_s)
            answering = connection.begin(pieces, deadline, slot=slot, takes_stream=takes_stream)
            if is_large and self._opened_together > 1 and now >= self._others_from_s and not connection.has_others:
                await self._open_others(connection, len(request.body), answering, deadline)
            answer = await answering
        except BaseException:
            if connection is None:
                self._disallow(slot is not None)
            elif slot is not None and connection.is_computing:
                connection.read_to_nobody(patience_s(self._now_s() - now, slot.expected_s))
            else:  # not reusable: the rest of its response may still come
                connection.close()
                self._disallow(slot is not None)
            raise
        finally:
            if is_large:
                self._large_json -= 1
        if not isinstance(answer, HttpAnswer):
            answer.timeout_s = timeout_s  # the stream gives the connection back
        elif is_large or is_beside_large:
            is_held_up = is_beside_large and self._now_s() - now > HELD_UP_S
            # Large JSON that is in flight comes back to the first place; where none is, one that was late, perhaps for another
            # reason, must not take it.
            self.give_back(connection, at=0 if is_large else int(not self._large_json) if is_held_up else None)
        else:
            self.give_back(connection)
        return answer

    async def close(self) -> None:
        """Close every connection; requests in flight, and those that wait for a connection, fail with
        UpstreamUnavailable.
        """
        self._is_closed = True
        for connection in tuple(self.open):
            connection.close()

    async def _allow(self, is_inference: bool, deadline: float) -> None:
        """Wait until one more connection may be used. Raises DeadlineExceeded."""
        try:
            if is_inference:
                await self._allowed_inference.acquire(deadline_s=deadline)
            try:
                await self._allowed.acquire(deadline_s=deadline)
            except BaseException:
                if is_inference:
                    self._allowed_inference.release()
                raise
        except TimeoutError as exc:
            raise DeadlineExceeded("all connections to Triton were busy until the request's deadline") from exc

    def _disallow(self, is_inference: bool) -> None:
        if is_inference:
            self._allowed.release_both(self._allowed_inference)
        else:
            self._allowed.release()

    def give_back(self, connection: HttpConnection, *, at: int | None = None) -> None:
        """Put a connection where it is taken next, or `at` a place far from there; the first one is that of large JSON."""
        if not connection.is_reusable:
            connection.close()
        elif at is None:
            self.idle.append(connection)
        else:
            self.idle.insert(at, connection)
        if connection.slot is not None:
            self._allowed.release_both(self._allowed_inference)
        else:
            self._allowed.release()

    async def _connect(self, deadline: float) -> HttpConnection:
        """Open a connection. Raises UpstreamUnavailable."""
        try:
            async with asyncio.timeout_at(min(deadline, self._now_s() + self._connect_timeout_s)):
                connection = await open_connection(lambda: HttpConnection(self), self._address, self._tls)
        except OSError as exc:  # TimeoutError is one too
            reason = f"cannot connect to Triton at {self._address}: {exc or 'timed out'}"
            raise UpstreamUnavailable(reason, is_not_sent=True) from exc
        self._register(connection)
        if len(self.open) > self._max_connections and self.idle:
            self.idle.pop(0).close()
        try:
            await self._open_more(deadline)
        except BaseException:
            self._keep_idle(connection)
            raise
        return connection

    async def _open_more(self, deadline: float) -> None:
        """Open as many as are opened together, for later requests; whatever fails of that is left out."""
        count = min(self._opened_together - 1, self._max_connections - len(self.open))
        if count <= 0 or self._is_opening_more or self._is_closed:
            return
        self._is_opening_more = True
        try:
            async with asyncio.timeout_at(min(deadline, self._now_s() + _OPENING_S)):
                await asyncio.gather(*(self._open_idle() for _ in range(count)), return_exceptions=True)
        except TimeoutError:
            pass
        finally:
            self._is_opening_more = False

    async def _open_others(self, connection: HttpConnection, body_bytes: int, answering: asyncio.Future[Any], deadline: float) -> None:
        """Open connections of other threads of Triton than this connection's: as that parses large JSON, it is not the
        first that has no other to take over. They are taken before those that were there."""
        try:
            if await comes_to_be_parsed(body_bytes, connection.is_writing, answering) and self._now_s() >= self._others_from_s:
                self._others_from_s = self._now_s() + _OTHERS_EVERY_S  # whoever sends such requests and leaves fills no pool
                before = len(self.open)
                await self._open_more(deadline)
                connection.has_others = len(self.open) > before or before >= self._max_connections
        except BaseException:
            answering.cancel()  # the caller has left, and nobody else awaits it
            raise

    async def _open_idle(self) -> None:
        connection = await open_connection(lambda: HttpConnection(self), self._address, self._tls)
        if len(self.open) >= self._max_connections:
            connection.close()
        else:
            self._register(connection)
            self._keep_idle(connection)

    def _register(self, connection: HttpConnection) -> None:
        # Here and not in connection_made: if connecting is cancelled in between, uvloop closes the connection without
        # calling connection_lost, and it would stay registered.
        if connection.is_open:
            self.open.add(connection)
        if self._is_closed:
            connection.close()

    def _keep_idle(self, connection: HttpConnection) -> None:
        if connection.is_open and not self._is_closed:
            self.idle.append(connection)

    def forget(self, connection: HttpConnection) -> None:
        self.open.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)
