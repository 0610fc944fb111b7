"""Callers that send one request after the other on a connection of their own and never send one again: what they see is what was said."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import grpc
import grpc.aio

from perf.chaos import models
from perf.chaos.answers import HUNG, LOST, REFUSED, WRONG_ANSWER, Answer
from perf.load.echo_requests import GRPC_PATH

DEADLINE_S = 10.0
_PATIENCE_S = 2.0
"""Beyond the deadline, until a caller gives up by itself."""
PAUSE_S = 0.005
"""Seconds that a caller pauses after each answer."""
_AFTER_FAILURE_S = 0.1
"""Before a caller whose connection is lost or who was refused comes again, so that an outage is no flood."""
_CHANNEL = (
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 300),
)
_MOST_EXACT = 1 << 20
"""Numbers up to this are told exactly by an FP32."""
_UNANSWERED = (LOST, HUNG, "UNAVAILABLE", "DEADLINE_EXCEEDED", f"{REFUSED} UNAVAILABLE")
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    kind: str
    model: str
    seconds: float = models.WORK_S
    deadline_s: float = DEADLINE_S
    hoard_bytes: float = 0.0
    number: float = 0.0
    """Of each such request, which makes them equal; 0: another one each time."""


@dataclass(slots=True)
class Timeline:
    """All answers of a drill."""

    answers: list[Answer] = field(default_factory=list)
    under_way_since_s: dict[int, float] = field(default_factory=dict)
    """When each request began that has no answer yet, by a number of its own."""

    def is_awaited_since(self, before_s: float) -> bool:
        """Whether a request has no answer yet that began before."""
        return any(began_s < before_s for began_s in self.under_way_since_s.values())

    async def ask(self, caller: Caller, asked: Asked) -> Answer:
        """Once; one that is cancelled leaves no answer."""
        began_s, wrong, number = time.monotonic(), "", next(_numbers)
        self.under_way_since_s[number] = began_s
        try:
            async with asyncio.timeout(asked.deadline_s + _PATIENCE_S):
                wrong = await caller.ask(asked, asked.number or float(number % _MOST_EXACT))
        except TimeoutError:
            wrong = f"{HUNG} {asked.deadline_s + _PATIENCE_S:g} s"
            await caller.close()
        finally:
            del self.under_way_since_s[number]
        self.answers.append(Answer(asked.kind, began_s, time.monotonic(), wrong))
        return self.answers[-1]


class Caller(Protocol):
    """One connection to one gateway."""

    async def ask(self, asked: Asked, number: float) -> str:
        """What is wrong with the answer; empty if nothing is."""

    async def close(self) -> None: ...


class HttpCaller:
    """Connects when it has to."""

    def __init__(self, address: str, key: str = "") -> None:
        self._address, self._key = address, key
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, asked: Asked, number: float) -> str:
        try:
            if self._streams is None:
                host, _, port = self._address.rpartition(":")
                self._streams = await asyncio.open_connection(host, int(port))
            return await self._exchange(*self._streams, asked, number)
        except (OSError, asyncio.IncompleteReadError, ValueError) as exc:
            await self.close()
            return f"{LOST}: {type(exc).__name__}"
        except asyncio.CancelledError:
            await self.close()  # an answer given up on would be taken for the next one's
            raise

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: Asked, number: float) -> str:
        path, body = self._request(asked, number)
        fields = f"Host: localhost\r\ntidegate-timeout-ms: {int(asked.deadline_s * 1000)}\r\n"
        fields += f"x-api-key: {self._key}\r\n" if self._key else ""
        writer.write(f"POST {path} HTTP/1.1\r\n{fields}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        wrong = await self._read(reader, head, number)
        if b"\r\nconnection: close" in head:
            await self.close()
        return wrong

    async def _read(self, reader: asyncio.StreamReader, head: bytes, number: float) -> str:
        """What is wrong with the answer that has this head."""
        answer = await self._body(reader, head)
        if head[9:12] != b"200":
            return said_by(head, answer)
        with suppress(LookupError, ValueError):
            if self._number(answer) == number:
                return ""
        return f"{WRONG_ANSWER}: {answer[:80]!r}"

    async def _body(self, reader: asyncio.StreamReader, head: bytes) -> bytes:
        if b"\r\ntransfer-encoding: chunked" in head:
            return b"".join([chunk async for chunk in chunks(reader)])
        return await reader.readexactly(int(head.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0]))

    def _request(self, asked: Asked, number: float) -> tuple[str, bytes]:
        """The path and the body."""
        return f"/v2/models/{asked.model}/infer", models.http_body(number, asked.seconds, asked.hoard_bytes)

    def _number(self, answer: bytes) -> float:
        return models.http_number(answer)


class EmbeddingsCaller(HttpCaller):
    """Asks `/v1/embeddings`."""

    def _request(self, asked: Asked, number: float) -> tuple[str, bytes]:
        return "/v1/embeddings", models.embeddings_body(asked.model, number, asked.seconds, asked.hoard_bytes)

    def _number(self, answer: bytes) -> float:
        return models.embedded_number(answer)


class GrpcCaller:
    """A channel of its own, without retries."""

    def __init__(self, address: str, key: str = "") -> None:
        self._address, self._metadata = address, (("x-api-key", key),) if key else ()
        self._channel: grpc.aio.Channel | None = None

    async def ask(self, asked: Asked, number: float) -> str:
        message = models.grpc_message(asked.model, number, asked.seconds, asked.hoard_bytes)
        try:
            answer = await self._connected().unary_unary(GRPC_PATH)(message, metadata=self._metadata, timeout=asked.deadline_s)
        except grpc.aio.AioRpcError as exc:
            return said_by_status(exc)
        return "" if models.grpc_number(answer) == number else WRONG_ANSWER

    def _connected(self) -> grpc.aio.Channel:
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._address, options=_CHANNEL)
        return self._channel

    async def close(self) -> None:
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()


class Either:
    """Several gateways, as a balancer has them: who is not answered by one goes to the next, and who has no request at one that is not
    ready any more."""

    def __init__(self, callers: Sequence[Caller], is_away: Callable[[int], bool] = lambda number: False) -> None:
        """`is_away` says whether the balancer knows the one of this number not to be ready."""
        self._callers, self._is_away, self._at = callers, is_away, 0

    async def ask(self, asked: Asked, number: float) -> str:
        if self._is_away(self._at):
            await self.close()
        caller = self._callers[self._at]
        wrong = await caller.ask(asked, number)
        if wrong.startswith(_UNANSWERED):
            await self.close()
        return wrong

    async def close(self) -> None:
        """And go on to the next."""
        await self._callers[self._at].close()
        self._at = (self._at + 1) % len(self._callers)


async def chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Of a chunked body, which has no trailers. Raises OSError, IncompleteReadError, ValueError: it is cut off."""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)


def said_by(head: bytes, body: bytes) -> str:
    """What an answer says that is no success."""
    text = f"{head[9:12].decode()} {body.decode(errors='replace')}"
    return f"{REFUSED} {text}" if b"\r\nretry-after:" in head else text


def said_by_status(status: grpc.aio.AioRpcError) -> str:
    """What a status says that is no success."""
    text = f"{status.code().name} {status.details()}"
    advice = (field for sent in (status.initial_metadata(), status.trailing_metadata()) for field, _ in sent or ())
    return f"{REFUSED} {text}" if "retry-after" in advice else text


CALLERS: dict[str, Callable[[str, str], Caller]] = {"http": HttpCaller, "grpc": GrpcCaller}


async def keep_asking(timeline: Timeline, caller: Caller, asked: Sequence[Asked], *, pause_s: float = PAUSE_S) -> None:
    """One after the other, in turns, until cancelled; with a pause after each answer."""
    try:
        for each in itertools.cycle(asked):
            answer = await timeline.ask(caller, each)
            await asyncio.sleep(_AFTER_FAILURE_S if answer.wrong else pause_s)
    finally:
        await caller.close()
