"""A `tidegate serve` of its own for tests: started as a user starts it, on free ports, in a private state folder."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from io import StringIO
from itertools import chain
from pathlib import Path

import pytest

from control_plane.cli import main
from control_plane.core.endpoints import CONTROL_FIELD
from control_plane.triton.embedded.command import shm_prefix
from tests.e2e.forks import PROJECT, Forked
from tests.unix_relay import UnixRelay

SHARED_TRITON = {"TIDEGATE_TRITON_TRANSPORT": "tcp", "TIDEGATE_LOCK_MODEL_CONTROL": "false"}
"""Variables of one whose Triton other gateways attach to and load models into."""
COMPLETE = "--triton-arg=--disable-auto-complete-config"
"""Flag of a Triton whose models have complete configurations: by default each load of a Python model starts one more stub, which imports
the model only to complete its configuration. Not for tests of a full fleet: as it expects shorter loads, more of them are late on a slow
machine and begun a second time elsewhere."""
FREE_PORTS = tuple(part for frontend in ("http", "grpc", "metrics", "admin") for part in (f"--{frontend}-port", "0"))
LONG_S = 120.0
"""Far more than any one thing takes on a slow and busy machine; what is awaited ends sooner or fails."""


@dataclass
class Tidegate:
    """A running one, and where it listens."""

    process: Forked | subprocess.Popen[str]
    state_dir: Path
    endpoints: dict[str, str]
    output: Path
    nodes: list[Tidegate] = field(default_factory=list)
    """Its nodes, by their servers' numbers; none where it starts the Tritons itself."""
    _relay: UnixRelay | None = None

    def address(self, frontend: str) -> str:
        """`host:port` of http, grpc or admin, as Triton's clients want it."""
        return self.endpoints[frontend].rpartition("//")[2]

    def port(self, frontend: str) -> int:
        return int(self.address(frontend).rpartition(":")[2])

    def port_of_metrics(self) -> int:
        return int(self.endpoints["metrics"].removesuffix("/metrics").rpartition(":")[2])

    def triton_log(self) -> str:
        return (self.state_dir / "triton" / "triton.log").read_text()

    def triton_port(self, service: str) -> int:
        """A port that leads to Triton's own HTTPService, GRPCInferenceService or Metrics Service, by its log."""
        started = re.compile(rf'Started {service} at (\S+):(\d+)"?$', re.MULTILINE)
        wait_for(lambda: started.search(self.triton_log()), what=f"the start of Triton's {service}")
        place, port = started.findall(self.triton_log())[-1]
        if not place.startswith("unix:"):
            return int(port)
        path = place.removeprefix("unix:") + (f":{port}" if service == "GRPCInferenceService" else "")
        if self._relay is None:
            self._relay = UnixRelay()
        return self._relay.port_of(str((self.state_dir / "triton/imports" / path).resolve()))

    def control_fields(self) -> list[tuple[str, str]]:
        """What Triton wants to see of whoever straight lists, loads or unloads models over HTTP: by its flags."""
        flag = f"--http-restricted-api=model-repository:{CONTROL_FIELD}="
        flags = (line.split("\0") for line in proc_files(descendants(self.process.pid), "cmdline").values())
        return [(CONTROL_FIELD, next(each.removeprefix(flag) for each in chain.from_iterable(flags) if each.startswith(flag)))]

    def stop(self) -> int:
        """End it as Ctrl-C does; its exit status."""
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(timeout=LONG_S)
        finally:
            self.close_relay()

    def kill(self) -> None:
        """End it at once, for a test that does not ask how it ends: an orderly end takes Triton seconds. The guardian sees to the rest."""
        self.process.kill()
        self.process.wait()
        self.close_relay()

    def close_relay(self) -> None:
        if self._relay is not None:
            self._relay.close()
            self._relay = None

    def below(self) -> set[int]:
        """Every process beneath it and its nodes."""
        return set[int]().union(*(descendants(each.process.pid) for each in (self, *self.nodes)))

    def said(self) -> str:
        return self.output.read_text()


def command(*arguments: str, python: str = sys.executable) -> list[str]:
    return [python, "-m", "control_plane", *arguments]


def run_cli(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """One command to its end, in this process: a new one imports for seconds on a slow machine."""
    status, said, remarked = 0, StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(remarked):
        for name, value in {"COLUMNS": "160", **(env or {})}.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["tidegate", *arguments])
        patch.chdir(PROJECT)
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, status, said.getvalue(), remarked.getvalue())


def refused_start(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`tidegate serve` on free ports that ends by itself, in a process of its own as what it sets holds for all of one."""
    return subprocess.run(
        command("serve", *FREE_PORTS, *arguments),
        capture_output=True,
        text=True,
        timeout=LONG_S,
        cwd=PROJECT,
        env={**os.environ, "COLUMNS": "160", **(env or {})},
    )


def start(
    state_dir: Path, *arguments: str, env: dict[str, str] | None = None, python: str = sys.executable, open_files: int | None = None
) -> Tidegate:
    """Start `tidegate serve` on free ports and wait until it says where it listens; with so many descriptors at most."""
    return start_program(state_dir, ("serve", *FREE_PORTS, *arguments), env=env, python=python, open_files=open_files)


def start_program(
    state_dir: Path,
    arguments: Sequence[str],
    *,
    env: dict[str, str] | None = None,
    python: str = sys.executable,
    open_files: int | None = None,
) -> Tidegate:
    """Start a command of `tidegate` with a state folder, as `start` does."""
    name, *options = arguments
    state_dir.mkdir(parents=True, exist_ok=True)
    output = state_dir / "output.txt"
    (state_dir / "endpoints.json").unlink(missing_ok=True)  # one that was killed leaves its own
    output.write_text("")
    words = (name, "--state-dir", str(state_dir), *options)
    environment = {**os.environ, "COLUMNS": "160", **(env or {})}
    if python == sys.executable and open_files is None:
        process: Forked | subprocess.Popen[str] = Forked(words, output=output, env=environment)
    else:
        limited = [] if open_files is None else ["prlimit", f"--nofile={open_files}:{open_files}"]
        with output.open("w") as sink:
            process = subprocess.Popen(
                limited + command(*words, python=python), stdout=sink, stderr=subprocess.STDOUT, text=True, cwd=PROJECT, env=environment
            )
    deadline = time.monotonic() + LONG_S
    while not (state_dir / "endpoints.json").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"tidegate did not become ready:\n{output.read_text()}")
        time.sleep(0.05)
    return Tidegate(process, state_dir, json.loads((state_dir / "endpoints.json").read_text()), output)


def shared_memory(tidegate: Tidegate) -> set[str]:
    """This one's regions in /dev/shm; another's are none of our business."""
    prefix = shm_prefix(tidegate.state_dir / "triton")
    return {name for name in os.listdir("/dev/shm") if name.startswith(prefix)}


def descendants(pid: int) -> set[int]:
    """Every process beneath `pid`, by /proc."""
    children: dict[int, set[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            children.setdefault(parent_of(int(name)), set()).add(int(name))
    found, open_ = set(), [pid]
    while open_:
        below = children.get(open_.pop(), set())
        found |= below
        open_ += below
    return found


def parent_of(pid: int) -> int:
    """Raises OSError where there is no such process."""
    with open(f"/proc/{pid}/stat") as stat:  # in half the time that a Path takes, for each process of the machine
        return int(stat.read().rpartition(")")[2].split(maxsplit=2)[1])


def command_line(pid: int) -> bytes:
    """A process's arguments, each ended by a NUL; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def living(pids: set[int]) -> set[int]:
    """Those of `pids` that still run (a zombie does not)."""
    alive = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            alive.add(pid)
    return alive


def proc_files(pids: set[int], name: str) -> dict[int, str]:
    """What /proc says under `name` of each of `pids`, but of those that have ended meanwhile."""
    found = {}
    for pid in pids:
        with suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/{name}").read_text().strip()
    return found


def wait_for(condition: object, *, timeout_s: float = LONG_S, what: str = "it", every_s: float = 0.05) -> None:
    """Poll `condition()` until it is true; AssertionError when the time is over.

    It is asked every so often, and later whenever a tenth more time has passed, five times a second at least: asking costs CPU.
    """
    assert callable(condition)
    began_s = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - began_s
        assert waited_s < timeout_s, f"{what} did not come true within {timeout_s} s"
        time.sleep(max(every_s, min(waited_s / 10, 0.2)))
