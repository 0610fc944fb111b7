"""Runtime in a process of its own, all threads of which every other thread on the machine interrupts (SCHED_IDLE).

`python -m python_backends.runtime.yielding DESCRIPTOR` is that process. In the stub's own process such threads would hold
what its other threads wait for, the interpreter's lock above all: who is interrupted with it keeps callers waiting until a
CPU is idle. A thread that is only nice runs on for its slice of some 3 ms (EEVDF, since Linux 6.6) when another one wakes
up, and a request wakes up five on its way.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import python_backends
from python_backends.runtime.errors import BackendError, ExecutionError, Unavailable
from python_backends.runtime.execution import Array, Tensors
from python_backends.runtime.model_config import ModelConfig
from python_backends.runtime.parent import end_with_parent
from python_backends.runtime.runtimes import open_runtime
from python_backends.runtime.variants.variant_choice import Variant

_RETRY_S = 10.0
"""Time for which no other process is started after one that could not be; opening a model takes a second of a CPU."""
_LOOK_S = 1.0
"""Time between looks at a process that has not answered: it may be starved, which is no fault, or stopped."""


class YieldingRuntime:
    """Runtime whose process starts with its first run, and is replaced where it has died."""

    def __init__(self, variant: Variant, config: ModelConfig, *, kind: str, device_id: int) -> None:
        """The arguments are those of `open_runtime`."""
        self._opening = replace(variant, latency_table=None), config, kind, device_id
        self._turn = threading.Lock()
        self._process: _Process | None = None
        self._refused = ""
        """Why the latest process could not be started."""
        self._may_start_s = 0.0

    @property
    def pid(self) -> int | None:
        """Its process; None before the first run."""
        return None if self._process is None else self._process.pid

    def run(self, output_names: Sequence[str], inputs: Tensors) -> Sequence[Array]:
        """See `Runtime.run`; one run at a time. One that finds the process dead, or sees it die, is run again by another.

        Raises:
            ExecutionError: Also where the process dies again.
            Unavailable: No process can be started now. Nothing was computed: elsewhere the request may succeed.
        """
        with self._turn:
            try:
                return self._run(output_names, inputs)
            except (EOFError, OSError):
                pass  # it has ended
            try:
                return self._run(output_names, inputs)
            except (EOFError, OSError) as exc:
                raise ExecutionError(f"the process for work in the background failed twice: {exc or 'it has ended'}") from exc

    def _run(self, output_names: Sequence[str], inputs: Tensors) -> Sequence[Array]:
        process = self._started()
        try:
            return process.ask((output_names, inputs))  # type: ignore[no-any-return]
        except BackendError:
            raise
        except BaseException:  # the rest of its answer may still come
            self._end()
            raise

    def _started(self) -> _Process:
        if self._process is None and time.monotonic() >= self._may_start_s:
            try:
                self._process = _Process(self._opening)
            except (EOFError, OSError, BackendError) as exc:
                self._refused, self._may_start_s = str(exc) or "it has ended", time.monotonic() + _RETRY_S
        if self._process is None:
            raise Unavailable(f"no process for work in the background could be started: {self._refused}")
        return self._process

    def close(self) -> None:
        """End the process. Nothing may be running."""
        with self._turn:
            self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


class _Process:
    """A process that has opened its runtime, and the connection to it."""

    def __init__(self, opening: object) -> None:
        """Raises as `ask`, and OSError where it cannot start."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._connection = Connection(ours.detach())
            try:
                self._process = subprocess.Popen(
                    (sys.executable, "-s", "-m", __name__, str(theirs.fileno())),
                    env={**os.environ, "PYTHONPATH": str(Path(python_backends.__file__).resolve().parents[1])},
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                )
            except BaseException:
                self._connection.close()
                raise
        try:
            self.ask(opening)
        except BaseException:
            self.end()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, question: object) -> Any:
        """Return its answer. Raises EOFError and OSError: it has died, or was stopped; BackendError: its answer."""
        self._connection.send(question)
        while not self._connection.poll(_LOOK_S):
            if self._is_stopped():
                raise OSError("it was stopped")
        answer = self._connection.recv()
        if isinstance(answer, BackendError):
            raise answer
        return answer

    def _is_stopped(self) -> bool:
        state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state in ("T", "t")

    def end(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()


def yield_cpu() -> None:
    """Let all other threads interrupt those of this process, and those that they will start, where the host allows that; for good."""
    for thread in os.listdir("/proc/self/task"):  # NumPy's libraries have started some on import
        with suppress(OSError):
            os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))


def main(descriptor: str) -> None:
    """Open a runtime and run it, as asked, until the other end of the connection closes, with whoever held it."""
    end_with_parent()
    yield_cpu()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's, which ends this process
    with suppress(EOFError, OSError), Connection(int(descriptor)) as connection:
        answer: object = None
        variant, config, kind, device_id = connection.recv()
        runtime = None
        try:
            runtime = open_runtime(variant, config, kind=kind, device_id=device_id)
        except Exception as exc:
            answer = ExecutionError(f"the model cannot be opened for work in the background: {exc}")
        connection.send(answer)
        while runtime is not None:
            try:
                answer = runtime.run(*connection.recv())
            except BackendError as exc:
                answer = exc
            connection.send(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
