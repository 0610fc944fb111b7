"""Processes of `tidegate jobs run`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.tidegate import PROJECT, Tidegate, wait_for


def worker(gateway: Tidegate, state_url: str, output: Path) -> subprocess.Popen[bytes]:
    words = ("jobs", "run", "--gateway", gateway.endpoints["http"], "--state-url", state_url, "--at-once", "4")
    with output.open("wb") as file:
        started = subprocess.Popen([sys.executable, "-m", "control_plane", *words], cwd=PROJECT, stdout=file, stderr=file, env=os.environ)
    wait_for(lambda: b"running jobs" in output.read_bytes(), what="the worker")
    return started
