"""Three times what a model can do, in an open loop over both protocols, with the real Triton: what it
computes is answered in time, the rest is refused at once, and all is as before a moment later.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2

from control_plane.objects.domain.tenant import Tenant
from perf.chaos.overload import arrivals
from tests.e2e import raw_http
from tests.e2e.accounts import make_key
from tests.e2e.conftest import MODELS, Start
from tests.e2e.load import INFER
from tests.e2e.tidegate import COMPLETE, LONG_S, Tidegate

SERVICE_S = 0.03
PEAK_PER_S = 1 / SERVICE_S
DEADLINE_S = 0.9
WINDOW_S, WINDOWS = 3.0, 6
SETTLED_S = 2.0
"""Time in which the load has filled what it can fill."""
BODY = json.dumps({"inputs": [{"name": "SECONDS", "shape": [1, 1], "datatype": "FP32", "data": [SERVICE_S]}]}).encode()


def message() -> bytes:
    request = service_pb2.ModelInferRequest(model_name="slow", raw_input_contents=[struct.pack("<f", SERVICE_S)])
    request.inputs.add(name="SECONDS", datatype="FP32", shape=(1, 1))
    found: bytes = request.SerializeToString()
    return found


@dataclass
class Load:
    """Open loop: requests come whatever became of those before, in a Poisson process (why: `perf.chaos.overload.arrivals`)."""

    http_port: int
    grpc_address: str
    key: str
    tells: bool = True
    """Whether callers say how long they wait; they leave then in any case."""
    in_time: dict[str, list[float]] = field(default_factory=lambda: {"http": [], "grpc": []})
    """When each answer in time came, in seconds from the start."""
    refused_after_s: list[float] = field(default_factory=list)
    retry_after_s: list[int] = field(default_factory=list)
    late: int = 0
    is_over: bool = False
    """Whether no more are to come."""
    _idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)
    _began_s: float = 0.0

    async def run(self, per_s: float, seconds: float) -> None:
        self._began_s = time.monotonic()
        async with grpc.aio.insecure_channel(self.grpc_address) as channel, asyncio.TaskGroup() as tasks:
            infer = channel.unary_unary(INFER)
            for at_s, protocol in arrivals(Random(0), per_s, seconds):
                if self.is_over:
                    break
                await asyncio.sleep(max(0.0, self._began_s + at_s - time.monotonic()))
                asking = self._over_grpc(infer) if protocol == "grpc" else self._over_http()
                tasks.create_task(asking if self.tells else self._in_its_time(asking))
        self.close()

    async def _in_its_time(self, asking: Coroutine[Any, Any, None]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE_S):
                await asking

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()

    async def _over_http(self) -> None:
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self.http_port)
        came_s = time.monotonic()
        fields = "Host: localhost\r\n" + (f"x-api-key: {self.key}\r\n" if self.key else "")
        fields += f"tidegate-timeout-ms: {int(DEADLINE_S * 1000)}\r\n" if self.tells else ""
        writer.write(f"POST /v2/models/slow/infer HTTP/1.1\r\n{fields}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0]))
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        self._idle.append((reader, writer))
        status = raw_http.status(head)
        if status == 503:
            self.retry_after_s.append(int(head.partition(b"\r\nretry-after: ")[2].partition(b"\r\n")[0]))
        self._count("http", came_s, is_ok=status == 200, is_refused=status == 503)

    async def _over_grpc(self, infer: grpc.aio.UnaryUnaryMultiCallable) -> None:
        came_s, code = time.monotonic(), grpc.StatusCode.OK
        try:
            await infer(message(), metadata=(("x-api-key", self.key),) if self.key else (), timeout=DEADLINE_S if self.tells else None)
        except grpc.aio.AioRpcError as exc:
            code = exc.code()
        is_refused = code not in (grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED)
        self._count("grpc", came_s, is_ok=code is grpc.StatusCode.OK, is_refused=is_refused)

    def _count(self, frontend: str, came_s: float, *, is_ok: bool, is_refused: bool) -> None:
        now_s = time.monotonic()
        if is_refused:
            self.refused_after_s.append(now_s - came_s)
        elif is_ok and now_s - came_s <= DEADLINE_S:
            self.in_time[frontend].append(now_s - self._began_s)
        else:
            self.late += 1

    def counts(self) -> dict[str, int]:
        """Requests that were answered in time so far, by protocol."""
        return {frontend: len(times) for frontend, times in self.in_time.items()}


@dataclass(frozen=True)
class Computed:
    """Reading of Triton's statistics of a model, at one time: requests computed since its load, and the seconds that took."""

    at_s: float
    requests: int
    busy_s: float

    @classmethod
    async def by_now(cls, gateway: Tidegate, key: str) -> Computed:
        fields = [("x-api-key", key)] if key else []
        answer = await asyncio.to_thread(raw_http.exchange, gateway.port("http"), "GET", "/v2/models/slow/stats", fields=fields)
        assert raw_http.status(answer) == 200, answer
        found = [each["inference_stats"] for each in json.loads(answer.partition(b"\r\n\r\n")[2])["model_stats"]]
        counts, busy_ns = (sum(each["compute_infer"][what] for each in found) for what in ("count", "ns"))
        return cls(time.monotonic(), counts, busy_ns / 1e9)

    def is_well(self, before: Computed, *, http: int, grpc: int, part: float) -> bool:
        """Whether the model was kept busy since then, and so much of what it has computed was answered in time, over both protocols."""
        is_busy = self.busy_s - before.busy_s >= 0.9 * (self.at_s - before.at_s)
        return is_busy and http + grpc >= part * (self.requests - before.requests) and 0.5 < http / max(1, grpc) < 2.0


async def require_well(gateway: Tidegate, load: Load, *, part: float) -> None:
    """AssertionError unless all is well in one of a few windows, which follow each other under the same load.

    What overload does to a gateway it does in each; what else runs on this machine, in some.
    """
    seen = list[object]()
    for _ in range(WINDOWS):
        before, counts = await Computed.by_now(gateway, load.key), load.counts()
        await asyncio.sleep(WINDOW_S)
        now = await Computed.by_now(gateway, load.key)
        came = {frontend: count - counts[frontend] for frontend, count in load.counts().items()}
        if now.is_well(before, **came, part=part):
            return
        seen.append((before, now, came))
    raise AssertionError(seen)


async def is_as_before(gateway: Tidegate, key: str) -> bool:
    """Whether in one of a few seconds at little load nobody is refused or late."""
    for _ in range(6):
        load = Load(gateway.port("http"), gateway.address("grpc"), key)
        await load.run(0.3 * PEAK_PER_S, 1.0)
        if not load.late and not load.refused_after_s:
            return True
    return False


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), id="open"),
        pytest.param(("--authentication", "--memory-budget", "1GiB"), id="a fleet with keys"),
    ],
)
def test_thrice_the_capacity_leaves_nine_tenths_of_the_peak(start: Start, tmp_path: Path, flags: tuple[str, ...]) -> None:
    key = make_key(None, tmp_path, Tenant("team"), scope="infer:slow") if "--authentication" in flags else ""
    running = start(tmp_path, *flags, "--model-repository", str(MODELS), COMPLETE, "--load", "slow")

    async def drill() -> None:
        load = Load(running.port("http"), running.address("grpc"), key)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run(3 * PEAK_PER_S, LONG_S))
            await asyncio.sleep(SETTLED_S)
            await require_well(running, load, part=0.9)
            load.is_over = True
        assert len(load.refused_after_s) > sum(load.counts().values())
        assert sorted(load.refused_after_s)[int(0.9 * len(load.refused_after_s))] < DEADLINE_S / 3, "at once, and not when its time is over"
        assert min(load.retry_after_s) >= 1
        assert await is_as_before(running, key)

    asyncio.run(drill())
    assert running.stop() == 0, running.said()


def test_callers_that_leave_without_having_said_when_are_answered_while_they_are_there(start: Start, tmp_path: Path) -> None:
    """As clients do that have a time-out of their own. In one line all of them were about to leave when it was their turn."""
    running = start(tmp_path, "--model-repository", str(MODELS), COMPLETE, "--load", "slow")

    async def drill() -> None:
        load = Load(running.port("http"), running.address("grpc"), "", tells=False)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run(1.5 * PEAK_PER_S, LONG_S))
            await asyncio.sleep(3 * SETTLED_S)
            await require_well(running, load, part=0.7)
            load.is_over = True

    asyncio.run(drill())
    assert running.stop() == 0, running.said()
