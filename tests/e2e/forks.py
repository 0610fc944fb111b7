"""Processes that are forked from one that has imported what they run: a start imports for longer than it does anything else.

`python -m control_plane` is started for real by what needs that: tests of the command line, of other Pythons, and one of `perf`.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path

from control_plane.cli import main
from perf.servers import processes

PROJECT = Path(__file__).resolve().parents[2]
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.e2e.preloaded"])

_LOOK_S = 0.02
_lock = threading.Lock()
"""Lock of multiprocessing's own table of processes, which tests start, and ask about, in several threads."""


class Forked:
    """A command of `tidegate` in a process of its own, which is used as a `subprocess.Popen`; it writes to `output`."""

    def __init__(self, args: Sequence[str], *, output: Path, env: Mapping[str, str]) -> None:
        self.args = [*args]
        self._process = PROCESSES.Process(target=_carry_out, args=(self.args, output, dict(env)), daemon=True)
        with _lock:
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        with _lock:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        until_s = math.inf if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > until_s:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(_LOOK_S)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _carry_out(args: Sequence[str], output: Path, env: Mapping[str, str]) -> None:
    _prepare(output, env)
    sys.argv = ["tidegate", *args]
    main()


def run_module(module: str, args: Sequence[str], output: Path, env: Mapping[str, str], *, is_real: bool) -> None:
    """Do what `python -m` does, in a process of `PROCESSES`, and write to `output`; each `tidegate` is started for real, or forked."""
    _prepare(output, env)
    if not is_real:
        forkserver._forkserver.ensure_running = lambda: None  # it is running, as this process is its child; Python would start another
        processes.start_tidegate = lambda words, log, env: Forked(words, output=log or output, env=env)
    multiprocessing.set_start_method("fork", force=True)  # Linux's default, in place of how this process was started
    sys.argv = [module, *args]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _prepare(output: Path, env: Mapping[str, str]) -> None:
    os.chdir(PROJECT)
    os.environ.clear()
    os.environ.update(env)
    with output.open("a") as sink:
        for descriptor in (1, 2):
            os.dup2(sink.fileno(), descriptor)
