"""One raw HTTP connection at a time: requests as bytes, answers as a client without opinions sees them."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

TIMEOUT_S = 8.0
CONTINUE = -1
STILL_IN_USE = re.compile("Failed to unregister|currently in use")
"""What Triton says of shared memory whose last request it has answered and not quite ended."""
Fields = Iterable[tuple[str, str]]


class Answer(NamedTuple):
    """One final answer. `fields` are sorted: their order says nothing, the case of their names may."""

    status: int
    fields: tuple[tuple[str, str], ...]
    body: bytes
    interim: tuple[int, ...] = ()
    """Statuses of the 1xx answers before it."""

    def field(self, name: str) -> str | None:
        return next((value for each, value in self.fields if each == name), None)


@dataclass(frozen=True)
class Talk:
    """What is said on one connection: each of `sent` at once, `answers` awaited after each, then whether it is still open."""

    name: str
    sent: tuple[bytes, ...]
    answers: tuple[int, ...] = ()
    """How many answers to wait for after each of `sent`; one each where nothing is said, and CONTINUE for the 100 alone."""
    bodiless: bool = False
    """No answer has a body, whatever its head says (HEAD)."""
    counts: bool = False
    """Numbers in the answers are counters and times, which no two requests see alike: only their names are compared."""
    patience_s: float = TIMEOUT_S
    """How long to wait for an answer. Shorter where Triton is known to give none."""


LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass
class Reader:
    connection: socket.socket
    buffer: bytes = field(default=b"")

    def answer(self, *, bodiless: bool = False) -> Answer:
        interim: tuple[int, ...] = ()
        while True:
            status, fields = self._head()
            if status >= 200:
                break
            interim = (*interim, status)
        named = {name.lower(): value for name, value in fields}
        body = b"" if bodiless else self._body(named)
        return Answer(status, tuple(sorted(fields)), body, interim)

    def take_continue(self) -> None:
        status, _ = self._head()
        assert status == 100, status

    def _head(self) -> tuple[int, list[tuple[str, str]]]:
        lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        assert lines[0].startswith("HTTP/1."), lines[0]
        return int(lines[0][9:12]), [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])]

    def _body(self, fields: dict[str, str]) -> bytes:
        if fields.get("transfer-encoding", "").lower() == "chunked":
            return b"".join(iter(self._chunk, b""))
        if "content-length" in fields:
            return self._take(int(fields["content-length"]))
        return self._rest() if fields.get("connection", "").lower() == "close" else b""

    def _chunk(self) -> bytes:
        data = self._take(int(self._until(b"\r\n"), 16))
        assert self._take(2) == b"\r\n"
        return data

    def _until(self, end: bytes) -> bytes:
        while end not in self.buffer:
            self._receive()
        found, _, self.buffer = self.buffer.partition(end)
        return found

    def _take(self, count: int) -> bytes:
        while len(self.buffer) < count:
            self._receive()
        found, self.buffer = self.buffer[:count], self.buffer[count:]
        return found

    def _rest(self) -> bytes:
        with suppress(ConnectionError):
            while True:
                self._receive()
        return self.buffer

    def _receive(self) -> None:
        data = self.connection.recv(1 << 16)
        if not data:
            raise ConnectionError("closed")
        self.buffer += data


def hold(port: int, talk: Talk) -> tuple[Answer | str, ...]:
    """Everything that a client sees of this talk: the answers, and how the connection ended."""
    seen: list[Answer | str] = []
    with socket.create_connection(("127.0.0.1", port), timeout=talk.patience_s) as connection:
        reader = Reader(connection)
        try:
            for number, data in enumerate(talk.sent):
                connection.sendall(data)
                if talk.answers and talk.answers[number] == CONTINUE:
                    reader.take_continue()
                for _ in range(talk.answers[number] if talk.answers else 1):
                    answer = reader.answer(bodiless=talk.bodiless)
                    while STILL_IN_USE.search(answer.body.decode("latin-1")):
                        time.sleep(0.01)
                        connection.sendall(data)
                        answer = reader.answer()
                    seen.append(_without_counts(answer) if talk.counts else answer)
            connection.sendall(LIVE)
            seen.append("open" if reader.answer().status == 200 else "confused")
        except AssertionError:
            seen.append("confused")
        except (ConnectionError, TimeoutError) as exc:
            seen.append("no answer" if isinstance(exc, TimeoutError) else "closed")
    return tuple(seen)


def _without_counts(answer: Answer) -> Answer:
    fields = tuple(field for field in answer.fields if field[0] != "Content-Length")
    return answer._replace(fields=fields, body=re.sub(rb"(?<=\":)\d+", b"N", answer.body))


def summary(seen: tuple[Answer | str, ...]) -> str:
    """Statuses and the end of the connection, as `100 200 404 open`."""
    return " ".join(each if isinstance(each, str) else " ".join(map(str, (*each.interim, each.status))) for each in seen)


def request(method: str, path: str, body: bytes | dict[str, object] = b"", *fields: tuple[str, str], length: bool = True) -> bytes:
    """One request; a dict is sent as JSON."""
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in fields)]
    if length and (encoded or method == "POST"):
        lines.append(f"Content-Length: {len(encoded)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + encoded


def chunked(data: bytes, size: int = 7) -> bytes:
    """`data` in chunks."""
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
