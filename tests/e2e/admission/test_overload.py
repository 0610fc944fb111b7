"""Three times what a model can do, in an open loop over both protocols, with the real Triton: what it
computes is answered in time, the rest is refused at once, and all is as before a moment later.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import Callable, Coroutine
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
from tests.e2e.admission.test_tenant_limits import make_key
from tests.e2e.conftest import MODELS, Start
from tests.e2e.load import INFER
from tests.e2e.tidegate import COMPLETE

SERVICE_S = 0.03
DEADLINE_S = 0.9
LASTS_S = 6.0
TRIES = 3
"""What overload does to a gateway it does each time; what else runs on this machine while one load is measured against another, once."""
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
    _idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)
    _began_s: float = 0.0

    async def run(self, per_s: float, seconds: float) -> None:
        self._began_s = time.monotonic()
        async with grpc.aio.insecure_channel(self.grpc_address) as channel, asyncio.TaskGroup() as tasks:
            infer = channel.unary_unary(INFER)
            for at_s, protocol in arrivals(Random(0), per_s, seconds):
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

    def per_s(self) -> float:
        return sum(SETTLED_S < at_s <= LASTS_S for times in self.in_time.values() for at_s in times) / (LASTS_S - SETTLED_S)


async def in_one_of(tries: int, drill: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """AssertionError of the last try unless the drill succeeds in one of so many."""
    for left in reversed(range(tries)):
        try:
            await drill()
        except AssertionError:
            if not left:
                raise
            await asyncio.sleep(SETTLED_S)
        else:
            return


async def peak_per_s(load: Load) -> float:
    """Answers a second to eight callers that each send one request after the other over HTTP."""
    until_s = time.monotonic() + 2.0

    async def caller() -> None:
        while time.monotonic() < until_s:
            await load._over_http()

    load._began_s = time.monotonic()
    await asyncio.gather(*(caller() for _ in range(8)))
    load.close()
    return len(load.in_time["http"]) / (time.monotonic() - load._began_s)


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), id="open"),
        pytest.param(("--authentication",), id="authenticated"),
        pytest.param(("--memory-budget", "1GiB"), id="fleet"),
    ],
)
def test_thrice_the_capacity_leaves_nine_tenths_of_the_peak(start: Start, tmp_path: Path, flags: tuple[str, ...]) -> None:
    key = make_key(None, tmp_path, Tenant("team"), scope="infer:slow") if "--authentication" in flags else ""
    running = start(tmp_path, *flags, "--model-repository", str(MODELS), COMPLETE, "--load", "slow")

    async def drill() -> None:
        peak = Load(running.port("http"), running.address("grpc"), key)
        at_most_per_s = await peak_per_s(peak)
        load = Load(running.port("http"), running.address("grpc"), key)
        await load.run(3 * at_most_per_s, LASTS_S)
        counts = {frontend: len(times) for frontend, times in load.in_time.items()}
        assert load.per_s() >= 0.9 * at_most_per_s, (at_most_per_s, counts, load.late)
        assert 0.5 < counts["http"] / counts["grpc"] < 2.0, counts
        assert sorted(load.refused_after_s)[int(0.9 * len(load.refused_after_s))] < DEADLINE_S / 3, "at once, and not when its time is over"
        assert min(load.retry_after_s) >= 1
        await asyncio.sleep(2.0)
        after = Load(running.port("http"), running.address("grpc"), key)
        await after.run(0.3 * at_most_per_s, 2.0)
        assert (after.late, after.refused_after_s) == (0, [])

    asyncio.run(in_one_of(TRIES, drill))
    assert running.stop() == 0, running.said()


def test_callers_that_leave_without_having_said_when_are_answered_while_they_are_there(start: Start, tmp_path: Path) -> None:
    """As clients do that have a time-out of their own. In one line all of them were about to leave when it was their turn."""
    running = start(tmp_path, "--model-repository", str(MODELS), COMPLETE, "--load", "slow")

    async def drill() -> None:
        peak = Load(running.port("http"), running.address("grpc"), "")
        at_most_per_s = await peak_per_s(peak)
        load = Load(running.port("http"), running.address("grpc"), "", tells=False)
        await load.run(1.5 * at_most_per_s, 2 * LASTS_S)
        in_time = [at_s for times in load.in_time.values() for at_s in times if at_s > LASTS_S]
        assert len(in_time) / LASTS_S >= 0.7 * at_most_per_s, (at_most_per_s, load.late, len(load.refused_after_s))

    asyncio.run(in_one_of(TRIES, drill))
    assert running.stop() == 0, running.said()
