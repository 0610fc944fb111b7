"""A `tidegate serve` that a drill may kill, hold still and start again at the same ports, and the processes beneath it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from control_plane.admin.client import AdminClient
from control_plane.core.errors import ControlPlaneError
from control_plane.workers.adapters.process import WORKER_MODULE
from perf.servers import processes
from perf.servers.processes import Started, free_port, tree

PROTOCOLS = ("http", "grpc")
_START_S = 120.0
_STOP_S = 30.0
_LOOK_S = 3.0


class Gateway:
    """One; its log lies in its state folder."""

    def __init__(self, state: Path, *flags: str, key: str = "", variables: Mapping[str, str] | None = None) -> None:
        """`key` is an administrator's, where one is needed."""
        self.state, self._key = state, key
        self._ports = {protocol: free_port() for protocol in (*PROTOCOLS, "metrics", "admin")}
        ports = [part for protocol, port in self._ports.items() for part in (f"--{protocol}-port", str(port))]
        self._words = ["serve", "--state-dir", str(state), *flags, *ports]
        self._variables = dict(variables or {})
        self._process: Started | None = None
        self._outlived: dict[int, str] = {}
        """When each process began that was beneath it when it was killed."""

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was never started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def load(self, model: str) -> None:
        """Blocks until it is ready. Raises ControlPlaneError: it cannot be."""
        self._client(_START_S).load(model)

    def load_everywhere(self, model: str) -> None:
        """Blocks until it is ready on every server."""
        self._client(_START_S).load(model, everywhere=True)

    @property
    def metrics(self) -> str:
        """The URL of its metrics page."""
        return f"http://127.0.0.1:{self._ports['metrics']}/metrics"

    @property
    def admin_url(self) -> str:
        """The URL of its admin API."""
        return f"http://127.0.0.1:{self._ports['admin']}"

    def address(self, protocol: str) -> str:
        return f"127.0.0.1:{self._ports[protocol]}"

    def said(self) -> str:
        log = self.state / "output.txt"
        return log.read_text(errors="replace") if log.exists() else ""

    def start(self) -> None:
        """Blocks until it listens. Raises RuntimeError with the end of its log."""
        self.state.mkdir(parents=True, exist_ok=True)
        written = self.state / "endpoints.json"
        written.unlink(missing_ok=True)  # one that was killed leaves its own
        self._process = processes.start_tidegate(self._words, self.state / "output.txt", {**os.environ, **self._variables})
        deadline_s = time.monotonic() + _START_S
        while not written.exists():
            if not self.is_running or time.monotonic() > deadline_s:
                raise RuntimeError(f"tidegate did not start:\n{self.said()[-3000:]}")
            time.sleep(0.05)

    def tell_to_stop(self) -> None:
        """As whoever supervises it does."""
        assert self._process is not None, "it was never started"
        self._process.send_signal(signal.SIGTERM)

    def wait(self, within_s: float) -> None:
        """For its end. Raises subprocess.TimeoutExpired."""
        assert self._process is not None, "it was never started"
        self._process.wait(timeout=within_s)

    def is_ready(self) -> bool:
        """As it tells a balancer."""
        try:
            with urllib.request.urlopen(f"http://{self.address('http')}/v2/health/ready", timeout=_LOOK_S):
                return True
        except OSError:
            return False

    def has_ready(self, models: Sequence[str]) -> bool:
        """Whether it shows all of these models as ready."""
        try:
            return all(self._client(_LOOK_S).get(model)["state"] == "READY" for model in models)
        except ControlPlaneError:
            return False

    def kill(self) -> None:
        """kill -9, as a crash is."""
        assert self._process is not None, "it was never started"
        self._outlived |= self._beneath()
        self._process.kill()
        self._process.wait()

    def stop(self, *, within_s: float = _STOP_S) -> None:
        """End it and all beneath it, whatever a drill has left still. Raises RuntimeError: something outlives it, or
        has outlived one that was killed."""
        if self._process is None:
            return
        below = self._outlived | (self._beneath() if self.is_running else {})
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._process.send_signal(signal.SIGINT)  # no load balancer has to notice its end first
        try:
            self._process.wait(timeout=within_s)
        except subprocess.TimeoutExpired:
            self.kill()  # each Triton's guardian ends it then
        _wait_for_end(below, within_s)

    def fleet(self) -> dict[str, Any]:
        """As its admin API shows it."""
        found: dict[str, Any] = self._client(_LOOK_S).ask("GET", "fleet")
        return found

    def regions(self) -> list[dict[str, Any]]:
        """The other regions, as its admin API shows them; none while it does not answer."""
        found: list[dict[str, Any]] = self._client(_LOOK_S).ask("GET", "regions")
        return found

    def guests(self) -> int:
        """How many requests of other regions have come."""
        with urllib.request.urlopen(self.metrics, timeout=_LOOK_S) as page:
            lines = page.read().decode().splitlines()
        return int(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("tidegate_region_guests_total")))

    def tritons(self) -> list[int]:
        return [pid for pid, line in self._processes() if line[0].endswith(b"tritonserver")]

    def workers(self) -> list[int]:
        return [pid for pid, line in self._processes() if WORKER_MODULE.encode() in line]

    def stubs(self, model: str) -> list[int]:
        """The Python processes that compute a model."""
        return [
            pid for pid, line in self._processes() if b"python_backend_stub" in line[0] and f"/{model}/".encode() in b"".join(line[1:2])
        ]

    def _beneath(self) -> dict[int, str]:
        """When each process of its tree began."""
        return {pid: begun for pid in tree(self.pid) if (begun := _begun(pid)) is not None}

    def _client(self, timeout_s: float) -> AdminClient:
        return AdminClient(self.admin_url, self._key or None, timeout_s=timeout_s)

    def _processes(self) -> Iterator[tuple[int, list[bytes]]]:
        """With their command lines, zombies left out."""
        for pid in tree(self.pid):
            with contextlib.suppress(OSError):
                if line := Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0"):
                    yield pid, line.split(b"\0")


class Node(Gateway):
    """A `tidegate node`, which a drill treats as it does a gateway; it has no ports for clients."""

    def __init__(self, state: Path, *flags: str, secret: Path, variables: Mapping[str, str] | None = None) -> None:
        super().__init__(state, variables=variables)
        self.port, self.triton_ports = free_port(), {name: free_port() for name in ("http", "grpc", "metrics")}
        ports = [part for name, port in self.triton_ports.items() for part in (f"--node-triton-{name}-port", str(port))]
        own = ["--state-dir", str(state), "--node-port", str(self.port), "--node-secret-file", str(secret), *ports]
        self._words = ["node", *own, *flags]

    def url(self, node_port: int) -> str:
        """Its entry in `--triton-url`, for gateways that reach it at this port."""
        ports = self.triton_ports
        return f"http://127.0.0.1:{ports['http']}?grpc_port={ports['grpc']}&metrics_port={ports['metrics']}&node=127.0.0.1:{node_port}"


def _wait_for_end(begun: Mapping[int, str], within_s: float) -> None:
    """Of guardians and what they end, which may outlive the gateway for a moment; what is left then is killed.
    Raises RuntimeError: something was."""
    deadline_s = time.monotonic() + within_s
    while left := [pid for pid, when in begun.items() if _begun(pid) == when]:
        if time.monotonic() > deadline_s:
            names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in left]
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise RuntimeError(f"processes outlived what a drill has ended: {', '.join(names)}")
        time.sleep(0.05)


def _begun(pid: int) -> str | None:
    """When a process began, in the kernel's ticks, which tells it from another of its number; None of one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
