"""Starts a tidegate for a scenario, as a user starts it, and ends it afterwards."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
DOORS = ("http", "grpc")
_START_TIMEOUT_S = 60.0


@contextlib.contextmanager
def serving(repositories: Sequence[Path], models: Sequence[str]) -> Iterator[dict[tuple[str, str], str]]:
    """A tidegate of its own with these models; its doors' addresses and Triton's own, by (`gateway` or `direct`, door)."""
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as folder:
        state = Path(folder)
        flags = ["--state-dir", folder]
        flags += [part for repository in repositories for part in ("--model-repository", str(repository))]
        flags += [part for model in models for part in ("--load", model)]
        ports = [part for door in ("http", "grpc", "metrics", "admin") for part in (f"--{door}-port", "0")]
        process = subprocess.Popen([sys.executable, "-m", "control_plane", "serve", *flags, *ports], stdout=subprocess.DEVNULL, cwd=PROJECT)
        try:
            yield _wait_for_addresses(state, process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=15)


def _wait_for_addresses(state: Path, process: subprocess.Popen[bytes]) -> dict[tuple[str, str], str]:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not (state / "endpoints.json").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("tidegate did not start; its words are above")
        time.sleep(0.1)
    endpoints = json.loads((state / "endpoints.json").read_text())
    log = (state / "triton" / "triton.log").read_text()
    services = {"http": "HTTPService", "grpc": "GRPCInferenceService"}
    found = {("gateway", door): endpoints[door].removeprefix("http://") for door in DOORS}
    return found | {("direct", door): re.findall(rf"Started {services[door]} at (\S+?)\"?$", log, re.MULTILINE)[-1] for door in DOORS}
