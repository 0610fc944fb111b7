"""A real worker process, and its parent's end of the link in the test's hand; no Triton."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from control_plane.core.endpoints import TritonEndpoints
from control_plane.core.model import ModelState
from control_plane.fleet.domain.report import Wanted
from control_plane.host.listening import share_port
from control_plane.host.service_sockets import ServiceSockets
from control_plane.models.domain.description import ModelSpec, Tier
from control_plane.settings import load_settings
from control_plane.workers.adapters.process import RunningWorker, WorkerProcessLauncher
from control_plane.workers.messages import (
    CannotBegin,
    Changed,
    CopiesSeen,
    Counted,
    Drain,
    FingerprintsChanged,
    FingerprintsTaken,
    FromWorker,
    Listen,
    Listening,
    LoadModel,
    ModelsSeen,
    Reported,
    SeenCopy,
    SeenModel,
    SeenServer,
    ServersSeen,
    UpstreamDown,
    UpstreamUp,
)
from tests.aio import run
from tests.redis_server import free_port
from tests.wire.gateway import INFER, LIVE, infer_request

FREE = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "admin_port": 0}


@dataclass
class Bench:
    worker: RunningWorker
    port: int
    http_socket: Path

    async def heard(self, kind: type[FromWorker]) -> Any:
        """The next message of that kind; what is said meanwhile is passed over."""
        while (message := await self.worker.receive()) is not None:
            if isinstance(message, kind):
                return message
        pytest.fail(f"the worker said no {kind.__name__}")

    async def ask(self, request: bytes, *, over_unix: bool = False) -> bytes:
        """The head of the answer."""
        opening = asyncio.open_unix_connection(str(self.http_socket)) if over_unix else asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = await opening
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        return head


@asynccontextmanager
async def started(tmp_path: Path, *, is_shared: bool = True, **given: object) -> AsyncIterator[Bench]:
    http_socket = tmp_path / "http.sock"
    sockets = ServiceSockets(load_settings({**FREE, "workers": 2, "http_socket": http_socket, **given}))
    for bound in (sockets.http, sockets.grpc) if is_shared else ():
        share_port(bound)
    settings = sockets.settings_in_force()
    worker = await WorkerProcessLauncher(settings, http_socket=sockets.http_unix, grpc_socket=None).start(1)
    try:
        yield Bench(worker, settings.gateway.http_port, http_socket)
    finally:
        worker.kill()
        await worker.wait()
        sockets.close()


def test_it_listens_when_told_answers_counts_and_drains(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as bench:
            bench.worker.send(UpstreamDown("Triton is having its tea"))
            with pytest.raises(ConnectionRefusedError):
                await bench.ask(LIVE)
            bench.worker.send(Listen())
            await bench.heard(Listening)
            assert (await bench.ask(LIVE)).startswith(b"HTTP/1.1 200")
            assert (await bench.ask(LIVE, over_unix=True)).startswith(b"HTTP/1.1 200")
            assert (await bench.ask(infer_request(INFER))).startswith(b"HTTP/1.1 503")
            bench.worker.send(Drain(1.0))
            last = None
            while (message := await bench.worker.receive()) is not None:
                last = message
            assert isinstance(last, Counted)
            assert [(each.outcome.value, each.count) for each in last.counts.ended] == [("unavailable", 1)]
            assert await bench.worker.wait() == "it ended with exit status 0"

    run(main())


def test_it_says_that_it_has_taken_what_is_loaded_whether_it_listens_or_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as bench:
            bench.worker.send(FingerprintsChanged(1, {"a": (b"k" * 32, True, True), "b": None}))
            assert await bench.heard(FingerprintsTaken) == FingerprintsTaken(1)
            bench.worker.send(Listen())
            await bench.heard(Listening)
            bench.worker.send(UpstreamDown("Triton is having its tea"))
            bench.worker.send(FingerprintsChanged(2, {"a": None}))
            assert await bench.heard(FingerprintsTaken) == FingerprintsTaken(2)

    run(main())


def test_in_a_fleet_it_asks_for_the_model_that_a_request_wants_and_sends_it_where_the_parent_says(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path, servers=2) as bench, asyncio.TaskGroup() as tasks:
            send = bench.worker.send
            send(ServersSeen({"s0": SeenServer(100), "s1": SeenServer(100)}))
            send(UpstreamUp(TritonEndpoints("127.0.0.1", free_port(), free_port(), None), "s0"))
            send(UpstreamDown("Triton is having its tea", "s1"))
            send(ModelsSeen({"m": SeenModel(ModelSpec("m"), Tier.WARM, 40, 0.1, 0.01)}))
            send(CopiesSeen("s0", {}))
            send(FingerprintsChanged(1, {"m": (b"k" * 32, True, True)}))
            send(Listen())
            await bench.heard(Listening)
            assert (await bench.ask(infer_request(INFER, model=b"nonesuch"))).startswith(b"HTTP/1.1 404")
            asking = tasks.create_task(bench.ask(infer_request(INFER)))
            report = (await bench.heard(Reported)).report
            assert (report.uses, report.wanted) == ({"m": 1}, (Wanted("m", 0),))
            send(CopiesSeen("s0", {"m": SeenCopy(1, ModelState.READY, 40, time.monotonic(), None)}))
            assert (await asking).startswith(b"HTTP/1.1 503"), "nobody listens there"
            send(UpstreamDown("it leaves", "s0"))
            send(ServersSeen({"s0": None}))
            send(FingerprintsChanged(2, {}))
            await bench.heard(FingerprintsTaken)
            assert (await bench.ask(LIVE)).startswith(b"HTTP/1.1 200")

    run(main())


def test_a_load_is_asked_of_the_parent_also_while_it_drains(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as bench, asyncio.TaskGroup() as tasks:
            bench.worker.send(Listen())
            await bench.heard(Listening)
            request = b"POST /v2/repository/models/m/load HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
            asking = tasks.create_task(bench.ask(request, over_unix=True))
            asked = await bench.heard(LoadModel)
            assert asked == LoadModel(asked.number, "m")
            bench.worker.send(Drain(5.0))
            bench.worker.send(Changed(asked.number))
            assert (await asking).startswith(b"HTTP/1.1 200")

    run(main())


@pytest.mark.parametrize("number", [signal.SIGTERM, None], ids=["SIGTERM", "the link's end"])
def test_it_ends_by(tmp_path: Path, number: signal.Signals | None) -> None:
    async def main() -> None:
        async with started(tmp_path) as bench:
            bench.worker.send(Listen())
            await bench.heard(Listening)
            if number is not None:
                os.kill(bench.worker.pid, number)
            else:
                bench.worker._link.close()
            assert await bench.worker.wait() == "it ended with exit status 0"

    run(main())


def test_ctrl_c_in_the_terminal_is_not_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as bench:
            assert os.getsid(bench.worker.pid) == bench.worker.pid

    run(main())


def test_what_it_cannot_work_with_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path, is_shared=False) as bench:
            told = await bench.heard(CannotBegin)
            assert f"port {bench.port} on 127.0.0.1 is taken" in told.reason
            assert await bench.worker.wait() == "it ended with exit status 1"

    run(main())


def test_one_that_is_killed_says_by_what(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as bench:
            bench.worker.kill()
            assert await bench.worker.wait() == "it was killed by signal 9"

    run(main())
