"""The client that floods: plain sockets, in a process of its own that gives way (`perf.servers.yielding`)."""

from __future__ import annotations

import contextlib
import re
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from control_plane.protocols.http2.frames import Code
from perf.floods.flood import Flood

_RECEIVE_BYTES = 1 << 18
_TAIL_BYTES = 4096
_POLL_S = 0.05
_OPENED_PER_S = 2_000.0
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_GOAWAY = re.compile(rb"\x07\0{5}.{4}(\0{3}[\0-\x0d])", re.DOTALL)
"""A GOAWAY frame: its head but for the length, the last stream, and the code."""


@dataclass(frozen=True, slots=True)
class Flooded:
    """Outcome of a flood."""

    sent_bytes: int
    connections: int
    refusals: Mapping[str, int]
    """How many connections the gateway ended with which status or code."""


@dataclass
class _Client:
    own: socket.socket
    pieces: Iterator[bytes]
    pending: memoryview = field(default_factory=lambda: memoryview(b""))
    tail: bytes = b""
    may_write_s: float = 0.0
    is_awaiting: bool = False


def flood(it: Flood, address: str, key: str, goes_on: Callable[[Mapping[str, int]], bool]) -> Flooded:
    """Flood as long as `goes_on` says, which is shown the refusals; a connection that the gateway ends is opened anew."""
    flooder = _Flooder(it, address, key.encode())
    try:
        while goes_on(flooder.refusals):
            flooder.step()
    finally:
        flooder.close()
    return Flooded(flooder.sent_bytes, flooder.opened, dict(flooder.refusals))


class _Flooder:
    def __init__(self, it: Flood, address: str, key: bytes) -> None:
        host, _, port = address.rpartition(":")
        self._it, self._address, self._key = it, (host, int(port)), key
        self._selector = selectors.DefaultSelector()
        self._open = 0
        self._may_open_s = 0.0
        self.sent_bytes = self.opened = 0
        self.refusals: Counter[str] = Counter()

    def step(self) -> None:
        """Write and read wherever that is possible now."""
        now_s = time.monotonic()
        self._open_missing(now_s)
        for key, events in self._selector.select(_POLL_S):
            client: _Client = key.data
            try:
                if events & selectors.EVENT_READ:
                    self._read(client)
                if events & selectors.EVENT_WRITE:
                    self._write(client, now_s)
            except OSError as exc:
                if not isinstance(exc, BlockingIOError):
                    self._end(client)
        if self._it.pause_s:
            time.sleep(self._it.pause_s / 10)  # sockets that pause can be written to: poll, do not spin

    def close(self) -> None:
        for key in tuple(self._selector.get_map().values()):
            self._close(key.data)
        self._selector.close()

    def _open_missing(self, now_s: float) -> None:
        while self._open < self._it.connections and now_s >= self._may_open_s:
            self._may_open_s = max(self._may_open_s, now_s - _POLL_S) + 1 / _OPENED_PER_S
            own = socket.socket()
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            own.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                own.connect(self._address)
            events = selectors.EVENT_WRITE | (selectors.EVENT_READ if self._it.reads else 0)
            self._selector.register(own, events, _Client(own, self._it.pieces(self._key)))
            self._open += 1
            self.opened += 1

    def _read(self, client: _Client) -> None:
        received = client.own.recv(_RECEIVE_BYTES)
        if not received:
            raise ConnectionResetError
        client.tail = (client.tail + received)[-_TAIL_BYTES:]
        client.is_awaiting = False

    def _write(self, client: _Client, now_s: float) -> None:
        if not client.pending:
            if now_s < client.may_write_s or client.is_awaiting:
                return
            piece = next(client.pieces, None)
            if piece is None:
                self._selector.modify(client.own, selectors.EVENT_READ, client)
                return
            client.pending, client.may_write_s, client.is_awaiting = memoryview(piece), now_s + self._it.pause_s, self._it.awaits
        sent = client.own.send(client.pending) if client.pending else 0
        self.sent_bytes += sent
        client.pending = client.pending[sent:]

    def _end(self, client: _Client) -> None:
        with contextlib.suppress(OSError):
            while received := client.own.recv(_RECEIVE_BYTES):
                client.tail = (client.tail + received)[-_TAIL_BYTES:]
        self.refusals[self._reason(client)] += 1
        self._close(client)

    def _close(self, client: _Client) -> None:
        self._selector.unregister(client.own)
        client.own.close()
        self._open -= 1

    def _reason(self, client: _Client) -> str:
        if self._it.protocol == "http":
            statuses: list[bytes] = _STATUS.findall(client.tail)
            return statuses[-1].decode() if statuses else "closed"
        codes: list[bytes] = _GOAWAY.findall(client.tail)
        return Code(int.from_bytes(codes[-1], "big")).name if codes else "closed"
