"""A real worker process, with the test as its parent at the other end of the link; no Triton."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from control_plane.core.endpoints import TritonEndpoints
from control_plane.core.errors import StartupError
from control_plane.core.model import ModelState
from control_plane.fleet.domain.leadership.report import Wanted
from control_plane.fleet.domain.snapshot import ModelSnapshot, ReplicaSnapshot, ServerSnapshot
from control_plane.host.network.listening import share_port
from control_plane.host.network.service_sockets import ServiceSockets
from control_plane.inference.domain.queries_of_death import Verdict
from control_plane.models.domain.description import ModelSpec, Tier
from control_plane.settings import load_settings
from control_plane.workers.adapters.process import RunningWorker, WorkerProcessLauncher
from control_plane.workers.messages import FromWorker
from control_plane.workers.messages.between_workers import FindingShared, LoadReported
from control_plane.workers.messages.from_workers import CountsReported, Drained, FingerprintsAcknowledged, Listening, LoadModel, StartFailed
from control_plane.workers.messages.to_workers import (
    Changed,
    Drain,
    FingerprintsChanged,
    Listen,
    ModelsChanged,
    ReplicasChanged,
    ServersChanged,
    UpstreamDown,
    UpstreamUp,
)
from tests.redis_server import free_port
from tests.wire.gateway import INFER, LIVE, infer_request

FREE = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "admin_port": 0}


@dataclass
class Bench:
    worker: RunningWorker
    port: int
    http_socket: Path

    async def heard(self, kind: type[FromWorker]) -> Any:
        """The next message of that kind; other messages are skipped."""
        while (message := await self.worker.receive()) is not None:
            if isinstance(message, kind):
                return message
        pytest.fail(f"the worker said no {kind.__name__}")

    async def ask(self, request: bytes, *, over_unix: bool = False) -> bytes:
        """Send a request; returns the head of the answer."""
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
    try:
        worker = await WorkerProcessLauncher(settings, http_socket=sockets.http_unix, grpc_socket=None).start(1)
        try:
            yield Bench(worker, settings.gateway.http_port, http_socket)
        finally:
            worker.kill()
            await worker.wait()
    finally:
        sockets.close()


async def test_it_listens_when_told_answers_counts_and_drains(tmp_path: Path) -> None:
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
        assert isinstance(last, CountsReported)
        assert [(each.outcome.value, each.count) for each in last.counts.ended] == [("unavailable", 1)]
        assert await bench.worker.wait() == "it ended with exit status 0"


async def test_under_what_a_process_died_it_says_and_what_others_found_guilty_it_refuses(tmp_path: Path) -> None:
    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):  # of the connections that the worker has to spare
            await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    async with await asyncio.start_server(die, "127.0.0.1", 0) as triton, started(tmp_path) as bench:
        port = triton.sockets[0].getsockname()[1]
        bench.worker.send(UpstreamUp(TritonEndpoints("127.0.0.1", port, free_port(), None)))
        bench.worker.send(Listen())
        await bench.heard(Listening)
        assert (await bench.ask(infer_request(INFER))).startswith(b"HTTP/1.1 503")
        told = await bench.heard(FindingShared)
        assert told.record.verdict is Verdict.SUSPECT
        bench.worker.send(replace(told, record=replace(told.record, verdict=Verdict.GUILTY)))
        # The link keeps messages in order.
        bench.worker.send(FingerprintsChanged(1, {}))
        await bench.heard(FingerprintsAcknowledged)
        assert (await bench.ask(infer_request(INFER))).startswith(b"HTTP/1.1 422")


async def test_a_drain_is_cut_short_by_a_second_one_and_said_to_be_over_before_the_end(tmp_path: Path) -> None:
    async with started(tmp_path) as bench, asyncio.TaskGroup() as tasks:
        bench.worker.send(Listen())
        await bench.heard(Listening)
        load = b"POST /v2/repository/models/m/load HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
        asking = tasks.create_task(bench.ask(load, over_unix=True))
        await bench.heard(LoadModel)
        bench.worker.send(Drain(1000.0))
        bench.worker.send(Drain(0.0))
        assert (await asking).startswith(b"HTTP/1.1 503")
        await bench.heard(Drained)
        assert await bench.worker.wait() == "it ended with exit status 0"


async def test_it_says_that_it_has_taken_what_is_loaded_whether_it_listens_or_not(tmp_path: Path) -> None:
    async with started(tmp_path) as bench:
        bench.worker.send(FingerprintsChanged(1, {"a": (b"k" * 32, True, True, False), "b": None}))
        assert await bench.heard(FingerprintsAcknowledged) == FingerprintsAcknowledged(1)
        bench.worker.send(Listen())
        await bench.heard(Listening)
        bench.worker.send(UpstreamDown("Triton is having its tea"))
        bench.worker.send(FingerprintsChanged(2, {"a": None}))
        assert await bench.heard(FingerprintsAcknowledged) == FingerprintsAcknowledged(2)


async def test_in_a_fleet_it_asks_for_the_model_that_a_request_wants_and_sends_it_where_the_parent_says(tmp_path: Path) -> None:
    async with started(tmp_path, servers=2) as bench, asyncio.TaskGroup() as tasks:
        send = bench.worker.send
        send(ServersChanged({"s0": ServerSnapshot(100), "s1": ServerSnapshot(100)}))
        send(UpstreamUp(TritonEndpoints("127.0.0.1", free_port(), free_port(), None), "s0"))
        send(UpstreamDown("Triton is having its tea", "s1"))
        send(ModelsChanged({"m": ModelSnapshot(ModelSpec("m"), Tier.WARM, 40, 0.1, 0.01)}))
        send(ReplicasChanged("s0", {}))
        send(FingerprintsChanged(1, {"m": (b"k" * 32, True, True, False)}))
        send(Listen())
        await bench.heard(Listening)
        assert (await bench.ask(infer_request(INFER, model=b"nonesuch"))).startswith(b"HTTP/1.1 404")
        asking = tasks.create_task(bench.ask(infer_request(INFER)))
        report = (await bench.heard(LoadReported)).report
        assert (report.uses, report.wanted) == ({"m": 1}, (Wanted("m", 0),))
        send(ReplicasChanged("s0", {"m": ReplicaSnapshot(1, ModelState.READY, 40, time.monotonic(), None)}))
        assert (await asking).startswith(b"HTTP/1.1 503"), "nobody listens there"
        send(UpstreamDown("it leaves", "s0"))
        send(ServersChanged({"s0": None}))
        send(FingerprintsChanged(2, {}))
        await bench.heard(FingerprintsAcknowledged)
        assert (await bench.ask(LIVE)).startswith(b"HTTP/1.1 200")


async def test_a_load_is_asked_of_the_parent_also_while_it_drains(tmp_path: Path) -> None:
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


async def test_what_it_cannot_work_with_is_told(tmp_path: Path) -> None:
    async with started(tmp_path, state_url=f"redis://127.0.0.1:{free_port()}") as bench:
        told = await bench.heard(StartFailed)
        assert "the state store cannot be reached" in told.reason
        assert await bench.worker.wait() == "it ended with exit status 1"


async def test_a_port_that_others_have_is_told_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"on 127\.0\.0\.1 is taken"):
        async with started(tmp_path, is_shared=False):
            pass


async def test_without_its_ports_it_gets_no_connections_though_it_is_frozen_and_goes_on_with_those_it_has(tmp_path: Path) -> None:
    async with started(tmp_path) as bench:
        bench.worker.send(UpstreamDown("Triton is having its tea"))
        bench.worker.send(Listen())
        await bench.heard(Listening)
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.port)
        writer.write(LIVE)
        await reader.readuntil(b"\r\n\r\n")  # it has accepted this one
        os.kill(bench.worker.pid, signal.SIGSTOP)
        writer.write(LIVE)
        bench.worker.stop_accepting()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", bench.port)
        os.kill(bench.worker.pid, signal.SIGCONT)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        bench.worker.send(Drain(60.0))
        assert await bench.worker.wait() == "it ended with exit status 0"
        writer.close()


async def test_it_ends_by_the_links_end(tmp_path: Path) -> None:
    async with started(tmp_path) as bench:
        bench.worker.send(Listen())
        await bench.heard(Listening)
        bench.worker._link.close()
        assert await bench.worker.wait() == "it ended with exit status 0"


async def test_ctrl_c_in_the_terminal_is_not_for_it_and_one_that_is_killed_says_by_what(tmp_path: Path) -> None:
    async with started(tmp_path) as bench:
        assert os.getsid(bench.worker.pid) == bench.worker.pid
        bench.worker.kill()
        assert await bench.worker.wait() == "it was killed by signal 9"
