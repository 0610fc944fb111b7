"""Starts a program for a scenario and ends it by its own pid, also on Ctrl-C; and reads from /proc what it used."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

PROJECT = Path(__file__).resolve().parents[2]
_START_TIMEOUT_S = 60.0
_LOWEST_PORT = 20_000
_END_TIMEOUT_S = 15.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

# Debian's packages of the programs that scenarios and tests run; the Makefile installs them.
_PACKAGES = {
    "wrk": "wrk",
    "nginx": "nginx-light",
    "h2load": "nghttp2-client",
    "nghttpd": "nghttp2-server",
    "redis-server": "redis-server",
    "rabbitmq-server": "rabbitmq-server",
    "chromium": "chromium",
    "prometheus": "prometheus",
}


@dataclass(frozen=True, slots=True)
class Usage:
    """Threads and memory that a process and all beneath it hold now."""

    threads: int
    rss_bytes: int


class Started(Protocol):
    """Running process, as `subprocess.Popen` has it."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: signal.Signals, /) -> None: ...
    def kill(self) -> None: ...


def execute_tidegate(words: Sequence[str], log: Path | None, environment: Mapping[str, str]) -> Started:
    """Start `tidegate` as a user does, in a session of its own.

    All that it says is added to `log`; without one only errors are told, where this process's are.
    """
    with contextlib.nullcontext() if log is None else log.open("ab") as output:
        streams: dict[str, Any] = {"stdout": output or subprocess.DEVNULL, "stderr": output}
        command = [sys.executable, "-m", "control_plane", *words]
        return subprocess.Popen(command, cwd=PROJECT, start_new_session=True, env=environment, **streams)


start_tidegate = execute_tidegate
"""What starts each `tidegate` of a scenario; tests put what forks one that has imported everything in its place."""


def require_programs(names: Sequence[str]) -> None:
    """Raises SystemExit with what to install when one is missing."""
    if missing := missing_packages(names):
        raise SystemExit(f"missing: run apt-get install --no-install-recommends {' '.join(missing)} as root and then this again")


def missing_packages(names: Iterable[str]) -> list[str]:
    return [_PACKAGES[name] for name in names if program(name) is None]


def program(name: str) -> str | None:
    """Return where a program lies; nginx's folder is often not on a user's PATH."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def free_port() -> int:
    """A port that nobody listens on now, and that no outgoing connection will be given.

    One from the kernel's own range may be taken by any client on this machine before a program that takes long to start has bound it.
    """
    while True:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", _port_below_ephemeral())) as probe:
            return int(probe.getsockname()[1])


def _port_below_ephemeral() -> int:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return random.randrange(_LOWEST_PORT, lowest) if lowest > _LOWEST_PORT else 0


def exit_on_sigterm() -> None:
    """Make SIGTERM unwind like Ctrl-C, so that everything that was started is ended."""
    signal.signal(signal.SIGTERM, lambda number, frame: exit(128 + number))


@contextlib.contextmanager
def running(
    command: Sequence[str], port: int, *, environment: Mapping[str, str] | None = None, start_timeout_s: float = _START_TIMEOUT_S
) -> Iterator[int]:
    """The pid of `command`, once something accepts at `port`; ended afterwards. Raises RuntimeError with its words if it never does."""
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            command, stdout=words, stderr=words, cwd=PROJECT, start_new_session=True, env={**os.environ, **(environment or {})}
        )
        try:
            if not _accepts(process, port, start_timeout_s):
                words.seek(0)
                raise RuntimeError(f"{' '.join(command)} did not start:\n{words.read().decode(errors='replace')[-2000:]}")
            yield process.pid
        finally:
            end(process)


def end(process: Started, *, by: signal.Signals = signal.SIGTERM) -> None:
    """SIGTERM or SIGINT, and SIGKILL when that is not heard."""
    process.send_signal(by)
    try:
        process.wait(timeout=_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def cpu_s(pid: int) -> float:
    """Seconds of CPU that the process and all beneath it have used, user and system."""
    return sum(_stat(each, 11) + _stat(each, 12) for each in tree(pid)) / _TICKS_PER_S


def own_cpu_s(pid: int) -> float:
    """Seconds of CPU that this one process has used, user and system."""
    return (_stat(pid, 11) + _stat(pid, 12)) / _TICKS_PER_S


def machine_cpu_s() -> tuple[float, float]:
    """Seconds that the CPUs of this machine have been busy and idle, all together."""
    user, nice, system, idle, waiting, *interrupts = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:8])
    return (user + nice + system + sum(interrupts)) / _TICKS_PER_S, (idle + waiting) / _TICKS_PER_S


def usage(pid: int) -> Usage:
    """Threads and resident memory of the process and all beneath it."""
    pids = tree(pid)
    return Usage(sum(_stat(each, 17) for each in pids), sum(_stat(each, 21) for each in pids) * os.sysconf("SC_PAGE_SIZE"))


def tree(pid: int) -> list[int]:
    """The process and all its descendants."""
    children: list[int] = []
    with contextlib.suppress(OSError):  # it may end meanwhile, and so may any thread of it
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                children += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return [pid, *(each for child in children for each in tree(child))]


def _stat(pid: int, index: int) -> int:
    """A number of /proc/PID/stat, counted from the field after the name, which may itself hold blanks."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[index])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _accepts(process: subprocess.Popen[bytes], port: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
        time.sleep(0.05)
    return False


if __name__ == "__main__":
    print(*missing_packages(_PACKAGES))  # for the Makefile, which installs them
