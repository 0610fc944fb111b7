from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from control_plane.core.errors import StartupError
from control_plane.settings import load_settings
from control_plane.workers.adapters.process import WorkerProcessLauncher


async def test_a_worker_that_cannot_be_started_is_told_so_and_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    launcher = WorkerProcessLauncher(load_settings({"http_port": 0, "grpc_port": 0}), http_socket=None, grpc_socket=None)
    with pytest.raises(StartupError, match="worker 3 cannot be started: No such file or directory"):
        await launcher.start(3)  # which also starts what asyncio keeps for subprocesses
    before = os.listdir("/proc/self/fd")
    with pytest.raises(StartupError):
        await launcher.start(3)
    assert len(os.listdir("/proc/self/fd")) == len(before)
