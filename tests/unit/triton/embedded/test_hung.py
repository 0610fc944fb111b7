"""A supervisor over the launcher and a stand-in for Triton that hangs: it ignores SIGTERM, accepts connections, never answers."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from control_plane.core.endpoints import Endpoints, TritonEndpoints
from control_plane.settings import TritonSettings
from control_plane.triton.adapters.liveness import LivenessProbeClient
from control_plane.triton.embedded.process import EmbeddedTritonLauncher
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import Servers
from control_plane.triton.supervisor import Supervisor
from tests.unit.triton.embedded.fake_wheel import write_wheel

SILENCE_S = 1.0


class AcceptsOnly:
    """A client of something that accepts connections and never answers, though it said that it was live."""

    def __init__(self, listener: socket.socket) -> None:
        port = listener.getsockname()[1]
        self.endpoints: Endpoints = TritonEndpoints(host="127.0.0.1", http_port=port, grpc_port=port, metrics_port=port)
        self.liveness = LivenessProbeClient(self.endpoints)

        self.control = self

    async def is_live(self) -> bool:
        return True

    async def is_serving(self) -> bool:
        return True

    async def close(self) -> None:
        await self.liveness.close()


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.timeout(120)
async def test_one_that_hangs_is_killed_and_another_one_started_in_its_place(tmp_path: Path) -> None:
    write_wheel(tmp_path / "cache")
    (tmp_path / "backends" / "ours").mkdir(parents=True)
    (tmp_path / "backends" / "ours" / "model.py").touch()
    settings = TritonSettings(cache_dir=tmp_path / "cache", python_backends=tmp_path / "backends", triton_env=["STUBBORN"])
    launcher = EmbeddedTritonLauncher(settings, tmp_path / "state", environment={"PATH": os.environ["PATH"], "STUBBORN": "1"})
    servers, pids = Servers(), list[int]()

    async def restore(upstream: Upstream) -> None:
        report = tmp_path / "state" / "triton" / "report"
        while not report.exists():
            await asyncio.sleep(0.01)
        pids.append(said(report)["pid"])
        report.unlink()

    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        supervisor = Supervisor(
            launcher=launcher,
            connect=lambda endpoints: AcceptsOnly(listener),  # type: ignore[arg-type, return-value]
            servers=servers,
            restore=restore,
            start_timeout_s=60.0,
            silence_timeout_s=SILENCE_S,
        )
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(supervisor.run())
            while len(pids) < 2:
                await asyncio.sleep(0.05)
            assert not lives(pids[0]), "only one may live in a state folder"
            assert servers.losses == 1
            running.cancel()
    assert not lives(pids[1])


def said(report: Path) -> Any:
    return json.loads(report.read_text())
