"""The caller who does no harm: one connection to each frontend, one request at a time, every few milliseconds, on blocking sockets."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.headers import NO_TABLE, Fields, encode_fields
from perf.floods.report import Run
from perf.load.echo_requests import GRPC_PATH, framed, grpc_request
from perf.waiting.clients import http_inference

_INTERVAL_S = 0.003
_GIVE_UP_S = 5.0
_TENSOR = np.zeros((1, 384), dtype=np.float32)


class _Asking(Protocol):
    def ask(self) -> None:
        """Ask once. Raises RuntimeError when it is refused, OSError when nothing comes."""

    def close(self) -> None: ...


class Bystander:
    """Asks for the gateway's health over HTTP, and for a small inference over HTTP and over gRPC, in turns."""

    def __init__(self, addresses: Mapping[str, str], key: str) -> None:
        self._addresses, self._key = addresses, key.encode()
        self._asking: dict[str, _Asking] = {}
        self.refusals: Counter[str] = Counter()
        """Why requests were refused or not answered, and how many of them."""

    def measure(self, duration_s: float) -> Run:
        """What its requests take while it asks for so long; one that is refused, or not answered, counts as the time until it gives up."""
        measured_s: dict[str, list[float]] = {what: [] for what in _ASKING}
        until_s = time.perf_counter() + duration_s
        while time.perf_counter() < until_s:
            for what, took_s in measured_s.items():
                asked_s = time.perf_counter()
                took_s.append(self._ask(what))
                time.sleep(max(0.0, _INTERVAL_S - (time.perf_counter() - asked_s)))
        return Run(*(figure for took_s in measured_s.values() for figure in _figures_ms(took_s)))

    def close(self) -> None:
        for asking in self._asking.values():
            asking.close()

    def _ask(self, what: str) -> float:
        sent_s = time.perf_counter()
        try:
            if what not in self._asking:
                protocol, make = _ASKING[what]
                self._asking[what] = make(self._addresses[protocol], self._key)
            self._asking[what].ask()
        except (OSError, RuntimeError) as exc:
            self.refusals[f"{what}: {exc!r}"] += 1
            if what in self._asking:
                self._asking.pop(what).close()
            return _GIVE_UP_S
        return time.perf_counter() - sent_s


class _Connection:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._own = socket.create_connection((host, int(port)), timeout=_GIVE_UP_S)
        self._own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._own.close()

    def _receive(self) -> bytes:
        received = self._own.recv(1 << 16)
        if not received:
            raise RuntimeError("the gateway closed the connection of the one who does no harm")
        return received


class _Live(_Connection):
    _request = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def __init__(self, address: str, key: bytes) -> None:
        super().__init__(address)

    def ask(self) -> None:
        self._own.sendall(self._request)
        answer = self._receive()
        while b"\r\n\r\n" not in answer:
            answer += self._receive()
        head, _, body = answer.partition(b"\r\n\r\n")
        missing = int(head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]) - len(body)
        while missing > 0:
            missing -= len(self._receive())
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"a request of the one who does no harm was refused: {answer!r}")


class _Http(_Live):
    def __init__(self, address: str, key: bytes) -> None:
        super().__init__(address, key)
        keyed = b"Host: localhost\r\nx-api-key: %b\r\n" % key
        self._request = http_inference("echo", "INPUT0", _TENSOR).replace(b"Host: localhost\r\n", keyed, 1)


class _Grpc(_Connection):
    def __init__(self, address: str, key: bytes) -> None:
        super().__init__(address)
        room = h2.window_update(0, h2.MAX_WINDOW_BYTES - h2.DEFAULT_WINDOW_BYTES)
        self._own.sendall(h2.PREFACE + h2.settings_frame({}) + h2.SETTINGS_ACK + room)
        fields: Fields = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", GRPC_PATH.encode()), (b":authority", b"localhost"))
        more: Fields = ((b"te", b"trailers"), (b"content-type", b"application/grpc"), (b"x-api-key", key))
        self._block = NO_TABLE + encode_fields((*fields, *more))
        self._message = framed(grpc_request("echo", "INPUT0", _TENSOR))
        self._frames = h2.FrameReader(1 << 24)
        self._stream_id = -1

    def ask(self) -> None:
        self._stream_id += 2
        head = h2.frame_head(h2.HEADERS, h2.END_HEADERS, self._stream_id, len(self._block)) + self._block
        self._own.sendall(head + h2.frame_head(h2.DATA, h2.END_STREAM, self._stream_id, len(self._message)) + self._message)
        received_bytes = 0
        while True:
            for kind, flags, _, payload in self._frames.feed(self._receive()):
                if kind == h2.DATA:
                    received_bytes += len(payload)
                is_end = kind == h2.HEADERS and flags & h2.END_STREAM
                if kind in (h2.GOAWAY, h2.RST_STREAM) or (is_end and received_bytes < _TENSOR.nbytes):
                    raise RuntimeError(f"a call of the one who does no harm was refused: {bytes(payload)!r}")
                if is_end:
                    return


_ASKING: Mapping[str, tuple[str, Callable[[str, bytes], _Asking]]] = {
    "live": ("http", _Live),
    "http": ("http", _Http),
    "grpc": ("grpc", _Grpc),
}
"""Bystanders by what they ask for: the protocol, and who asks; in the order of `Run`."""


def _figures_ms(seconds: list[float]) -> tuple[float, float, float]:
    p50_s, p99_s = np.percentile(seconds, [50, 99])
    return float(p50_s) * 1e3, float(p99_s) * 1e3, max(seconds) * 1e3
