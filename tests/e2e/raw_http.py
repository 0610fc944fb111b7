"""HTTP as bytes: what a client library would hide."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable

Fields = Iterable[tuple[str, str]]


def exchange(port: int, method: str, path: str, body: bytes = b"", fields: Fields = (), *, timeout_s: float = 120.0) -> bytes:
    """Send one request on a connection of its own and return the whole answer as it came."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        *(f"{name}: {value}" for name, value in fields),
        f"Content-Length: {len(body)}",
    ]
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received:
        received += _receive(connection)
    head, _, body = received.partition(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    while len(body) < length:
        body += _receive(connection)
    return head + b"\r\n\r\n" + body


def status(answer: bytes) -> int:
    return int(answer[9:12])


def error(answer: bytes) -> str:
    text: str = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    return text


def infer(port: int, model: str, header: object, binary: bytes = b"", fields: Fields = ()) -> bytes:
    """An inference request with an optional binary part; `header` may be bytes that are no JSON."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    extra = [("Inference-Header-Content-Length", str(len(encoded)))] if binary else []
    return exchange(port, "POST", f"/v2/models/{model}/infer", encoded + binary, [*extra, *fields])


def _receive(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 16)
    if not data:
        raise ConnectionError("closed before the whole answer was there")
    return data
