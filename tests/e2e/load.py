"""Callers that count what each answer was, whoever ends the connection: what usage is held against."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2

from tests.e2e.tidegate import LONG_S, Tidegate

INFER = "/inference.GRPCInferenceService/ModelInfer"
ELEMENTS = 4
_RECONNECT_S = 0.05
_OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))

OutcomeCount = Literal["requests", "failed", "refused"]
"""As usage has it."""
_BY_STATUS: dict[int, OutcomeCount] = {200: "requests", 400: "refused", 429: "refused"}
_BY_CODE: dict[grpc.StatusCode, OutcomeCount] = {
    grpc.StatusCode.INVALID_ARGUMENT: "refused",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "refused",
    grpc.StatusCode.NOT_FOUND: "failed",
}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a tenant's: over HTTP a whole one, over gRPC a message."""

    tenant: str
    key: str
    data: bytes


@dataclass
class Counts:
    """What callers were answered."""

    ended: Counter[tuple[str, OutcomeCount]] = field(default_factory=Counter)
    """By tenant."""
    at_s: deque[float] = field(default_factory=lambda: deque(maxlen=200_000))
    """When each answer was there."""
    unanswered: int = 0
    """Sent once more, since their connection ended."""

    def add(self, tenant: str, ended: OutcomeCount) -> None:
        self.ended[tenant, ended] += 1
        self.at_s.append(time.monotonic())


@dataclass
class Target:
    """The gateway that is there now: callers come back to the one that follows it; None ends them."""

    gateway: Tidegate | None


def http_ask(tenant: str, key: str, body: bytes) -> Ask:
    head = f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: localhost\r\nx-api-key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    return Ask(tenant, key, head.encode() + body)


def grpc_ask(tenant: str, key: str, *, model: str = "echo", datatype: str = "FP32") -> Ask:
    message = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[bytes(4 * ELEMENTS)])
    message.inputs.add(name="INPUT0", datatype=datatype, shape=(1, ELEMENTS))
    return Ask(tenant, key, message.SerializeToString())


async def call_http(target: Target, asks: deque[Ask], counts: Counts, *, pause_s: float = 0.0) -> None:
    """One caller on one connection at a time, until there is nothing left to ask."""
    while asks and (gateway := target.gateway) is not None:
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port("http"))
            try:
                await _ask_on(reader, writer, asks, counts, pause_s)
            finally:
                writer.close()
        await asyncio.sleep(_RECONNECT_S)


async def _ask_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asks: deque[Ask], counts: Counts, pause_s: float) -> None:
    while asks:
        ask = asks.popleft()
        try:
            writer.write(ask.data)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]))
        except (OSError, asyncio.IncompleteReadError):
            counts.unanswered += 1
            asks.append(ask)
            raise
        status = int(head[9:12])
        assert status not in (401, 403), "its key is not known yet: nobody's usage"
        counts.add(ask.tenant, _BY_STATUS.get(status, "failed"))
        if b"\r\nconnection: close" in head:
            return
        if pause_s:
            await asyncio.sleep(pause_s)


async def call_grpc(target: Target, asks: deque[Ask], counts: Counts) -> None:
    """The same over gRPC."""
    while asks and (gateway := target.gateway) is not None:
        async with grpc.aio.insecure_channel(gateway.address("grpc"), options=_OWN_CONNECTION) as channel:
            infer = channel.unary_unary(INFER)
            while asks and await _infer(infer, asks, counts):
                pass
        await asyncio.sleep(_RECONNECT_S)


async def _infer(infer: grpc.aio.UnaryUnaryMultiCallable, asks: deque[Ask], counts: Counts) -> bool:
    """Whether the connection goes on."""
    ask = asks.popleft()
    try:
        await infer(ask.data, metadata=(("authorization", f"Bearer {ask.key}"),), timeout=LONG_S)
    except grpc.aio.AioRpcError as exc:
        if exc.code() is grpc.StatusCode.UNAVAILABLE:
            counts.unanswered += 1
            asks.append(ask)
            return False
        counts.add(ask.tenant, _BY_CODE.get(exc.code(), "failed"))
    else:
        counts.add(ask.tenant, "requests")
    return True


def spread(parts: Iterable[tuple[Ask, int]]) -> deque[Ask]:
    """So many of each, evenly mixed."""
    placed = [((number + 0.5) / count, ask) for ask, count in parts for number in range(count)]
    return deque(ask for _, ask in sorted(placed, key=lambda at: at[0]))
