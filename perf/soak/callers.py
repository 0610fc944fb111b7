"""The clients of `perf.soak`, in a process of their own: an open loop at a rate that changes, and callers who ask in turns for the peak."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import uvloop

from control_plane.core.endpoints import TcpAddress
from control_plane.core.errors import UpstreamUnavailable
from control_plane.protocols.grpc import GrpcHead
from control_plane.triton.adapters.grpc.client import GrpcClient
from control_plane.triton.ports import GrpcCall
from perf.soak.asks import GRPC, HTTP, INFER, STREAM, Ask, Asks
from perf.soak.flood import Flooded, flood, read
from perf.soak.http_caller import HttpCaller, NoConnection
from perf.soak.outcomes import DEADLINE_S, Journal, Outcome, Requests

_SEED = 11
_LEAVERS, _LEAVES_AFTER_S = 0.03, 0.002
"""Part of the requests whose callers leave, and when."""
_AT_ONCE = 16
_PATIENCE_S = 1.0
"""Beyond the deadline, until a caller gives up: so what comes too late is seen, and by how much."""
_QUOTED = 120
_BUSY = b"too busy to answer"
"""Words of a refusal within a stream, which has no status of its own."""
_RESOURCE_EXHAUSTED, _UNAVAILABLE, _DEADLINE_EXCEEDED = 8, 14, 4
_GRPC_OUTCOMES = {
    _RESOURCE_EXHAUSTED: Outcome.REFUSED,
    _UNAVAILABLE: Outcome.REFUSED,
    _DEADLINE_EXCEEDED: Outcome.EXPIRED,
}
_HEADS = {path: GrpcHead(path, ((b"content-type", b"application/grpc"),)) for path in (INFER, STREAM)}
_TIMEOUT = ("grpc-timeout", f"{1e3 * DEADLINE_S:.0f}m")
"""Told as a field: this client would keep a deadline that it knows itself."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the soak with one rate."""

    name: str
    seconds: float
    per_s: float
    flood_per_s: float = 0.0
    """Requests by h2load beside these (`perf.soak.flood`)."""


@dataclass(frozen=True, slots=True)
class Gateway:
    addresses: Mapping[str, str]
    keys: Sequence[str]
    """API keys, one of each tenant."""


def soak(gateway: Gateway, phases: Sequence[Phase], cold_every_s: float) -> tuple[Requests, list[Flooded]]:
    """Send what each phase has, whatever becomes of what was sent before, and wait for the last answers."""
    return uvloop.run(_Clients(gateway).soak(phases, cold_every_s))


def peak_per_s(gateway: Gateway, callers: int, seconds: float) -> float:
    """Right answers a second for so many callers who ask again when they were answered."""
    return uvloop.run(_Clients(gateway).peak_per_s(callers, seconds))


class _Clients:
    """Callers of the soak, with all their connections."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._random = Random(_SEED)
        self._asks = Asks(gateway.keys, self._random)
        self._journal = Journal()
        self._phase = ""

    async def soak(self, phases: Sequence[Phase], cold_every_s: float) -> tuple[Requests, list[Flooded]]:
        self._open()
        floods = []
        try:
            asks = {HTTP: self._asks.fresh(is_http=True), GRPC: self._asks.fresh(is_http=False)}
            answer = await self._grpc[0].unary(GrpcCall(_HEADS[INFER], asks[GRPC].data), timeout_s=_PATIENCE_S)
            answer_bytes = len(b"".join(answer.body))
            async with asyncio.TaskGroup() as tasks:
                due_s = 0.0
                for phase in phases:
                    self._phase, ends_s = phase.name, due_s + phase.seconds
                    if phase.flood_per_s:
                        how = self._gateway.addresses, self._gateway.keys, asks, answer_bytes
                        floods.append(tasks.create_task(flood(*how, per_s=phase.flood_per_s, seconds=phase.seconds)))
                    cold = tasks.create_task(self._ask_cold(tasks, due_s, ends_s, cold_every_s))
                    await self._ask_hot(tasks, due_s, ends_s, phase.per_s)
                    await cold
                    due_s = ends_s
        finally:
            await self._close()
        return self._journal.closed(), [read(said) for each in floods for said in each.result()]

    async def peak_per_s(self, callers: int, seconds: float) -> float:
        self._open()

        async def caller() -> None:
            while self._now_s() < seconds:
                await self._ask(*self._asks.hot(), self._now_s(), leaves=False)

        try:
            await asyncio.gather(*(caller() for _ in range(callers)))
        finally:
            await self._close()
        return self._journal.closed().count(Outcome.ANSWERED) / self._now_s()

    def _open(self) -> None:
        self._http = HttpCaller(self._gateway.addresses["http"])
        host, _, port = self._gateway.addresses["grpc"].rpartition(":")
        self._grpc = [GrpcClient(TcpAddress(host, int(port)), headers=(("x-api-key", key), _TIMEOUT)) for key in self._gateway.keys]
        self._began_s = time.perf_counter()

    async def _close(self) -> None:
        self._http.close()
        for client in self._grpc:
            await client.close()

    async def _ask_hot(self, tasks: asyncio.TaskGroup, due_s: float, ends_s: float, per_s: float) -> None:
        sent = 0
        while (due_s := due_s + self._random.expovariate(per_s)) < ends_s:
            if (left_s := due_s - self._now_s()) > 0 or (sent := sent + 1) % _AT_ONCE == 0:
                await asyncio.sleep(max(0.0, left_s))  # also when it is late: answers are read meanwhile
            if self._now_s() - due_s > DEADLINE_S:  # sent now it could only make those late that come after it
                self._journal.add(due_s, due_s, self._now_s(), Outcome.UNSENT)
                continue
            leaves = self._random.random() < _LEAVERS
            tasks.create_task(self._ask(*self._asks.hot(), due_s, leaves=leaves))

    async def _ask_cold(self, tasks: asyncio.TaskGroup, due_s: float, ends_s: float, every_s: float) -> None:
        while (due_s := due_s + every_s) < ends_s:
            await asyncio.sleep(max(0.0, due_s - self._now_s()))
            tasks.create_task(self._ask(*self._asks.cold(), due_s, leaves=False))

    async def _ask(self, tenant: int, ask: Ask, due_s: float, *, leaves: bool) -> None:
        sent_s, said, phase = self._now_s(), "", self._phase
        at_most_s = _LEAVES_AFTER_S if leaves else ask.deadline_s + _PATIENCE_S
        try:
            async with asyncio.timeout(at_most_s):
                outcome, said = await self._answered(tenant, ask)
        except TimeoutError:
            outcome, said = (Outcome.LEFT, "") if leaves else (Outcome.EXPIRED, f"no answer in {at_most_s:g} s")
        except NoConnection:
            outcome = Outcome.UNSENT
        except (OSError, UpstreamUnavailable) as exc:
            outcome, said = Outcome.ERROR, str(exc)
        if said:
            self._journal.said[f"{phase}, {ask.way}, {ask.model}: {outcome.name.lower()}: {said[:_QUOTED]}"] += 1
        self._journal.add(due_s, sent_s, self._now_s(), outcome, is_cold=ask.is_cold)

    async def _answered(self, tenant: int, ask: Ask) -> tuple[Outcome, str]:
        if ask.way == HTTP:
            return of_http(await self._http.ask(ask.data, sendable_s=ask.deadline_s), ask)
        if ask.way == GRPC:
            answer = await self._grpc[tenant].unary(GrpcCall(_HEADS[INFER], ask.data), timeout_s=ask.deadline_s + _PATIENCE_S)
            if answer.code == 0:
                return right(b"".join(answer.body), ask)
            return of_status(answer.code, answer.details, is_lost=answer.loss is not None)
        return await self._streamed(tenant, ask)

    async def _streamed(self, tenant: int, ask: Ask) -> tuple[Outcome, str]:
        stream = await self._grpc[tenant].open_stream(_HEADS[STREAM], timeout_s=ask.deadline_s)
        try:
            await stream.send(ask.data)
            stream.half_close()
            frames = []
            while (frame := await stream.receive()) is not None:
                frames.append(bytes(frame))
        finally:
            stream.cancel()
        fields = dict(stream.trailers)
        code = int(fields.get(b"grpc-status", b"2"))
        if code == 0 and any(_BUSY in frame for frame in frames):
            return Outcome.REFUSED, _BUSY.decode()
        return right(b"".join(frames), ask) if code == 0 else of_status(code, fields.get(b"grpc-message", b"").decode())

    def _now_s(self) -> float:
        return time.perf_counter() - self._began_s


def of_http(answer: bytes, ask: Ask) -> tuple[Outcome, str]:
    status = answer[9:12]
    if status == b"200":
        return right(answer, ask)
    head, _, body = answer.partition(b"\r\n\r\n")
    said = f"{status.decode()} {body.decode(errors='replace')}"
    if status in (b"429", b"503") and b"\r\nretry-after:" in head.lower():
        return Outcome.REFUSED, said
    return (Outcome.EXPIRED if status == b"504" else Outcome.ERROR), said


def of_status(code: int, details: str, *, is_lost: bool = False) -> tuple[Outcome, str]:
    """`is_lost`: it was made up by the client, whose connection broke or could not be made."""
    outcome = _GRPC_OUTCOMES.get(code, Outcome.ERROR)
    return Outcome.ERROR if is_lost and outcome is Outcome.REFUSED else outcome, f"{code} {details}"


def right(answer: bytes, ask: Ask) -> tuple[Outcome, str]:
    if answer.count(ask.answer) == ask.times:
        return Outcome.ANSWERED, ""
    return Outcome.ERROR, f"a wrong answer: {answer[-_QUOTED:].decode(errors='replace')}"
