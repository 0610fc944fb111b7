"""Starts a tidegate for a scenario, as a user starts it, and ends it afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perf.servers import processes
from perf.servers.processes import Started, end

PROTOCOLS = ("http", "grpc")
_START_TIMEOUT_S = 200.0
_SERVICES = {"http": "HTTPService", "grpc": "GRPCInferenceService", "metrics": "Metrics Service"}


@dataclass(frozen=True, slots=True)
class Tidegate:
    """Running `tidegate serve`."""

    pid: int
    addresses: Mapping[str, str]
    """`HOST:PORT` by protocol."""
    state: Path

    @property
    def metrics(self) -> str:
        """The URL of its metrics page."""
        return str(json.loads((self.state / "endpoints.json").read_text())["metrics"])


@contextlib.contextmanager
def serving(repositories: Sequence[Path], models: Sequence[str]) -> Iterator[dict[tuple[str, str], str]]:
    """A tidegate of its own with these models; its frontends' addresses and Triton's own, by (`gateway` or `direct`, protocol)."""
    with serving_models(repositories, models) as started:
        direct = triton_addresses(started)
        yield {("gateway", protocol): started.addresses[protocol] for protocol in PROTOCOLS} | {
            ("direct", protocol): direct[protocol] for protocol in PROTOCOLS
        }


@contextlib.contextmanager
def serving_models(
    repositories: Sequence[Path], models: Sequence[str], *, variables: Mapping[str, str] | None = None
) -> Iterator[Tidegate]:
    """A tidegate of its own with these models; of two of one name the first repository's counts, without any the shipped ones.

    Its Triton listens on ports, as it does not by itself, so that it can be measured straight by the same programs.
    """
    flags = ["--triton-transport", "tcp"]
    flags += [part for repository in repositories for part in ("--model-repository", str(repository))]
    flags += [part for model in models for part in ("--load", model)]
    with tidegate(flags, variables=variables) as started:
        yield started


def triton_addresses(started: Tidegate) -> dict[str, str]:
    """`HOST:PORT` of its Triton, by protocol and for `metrics`, out of its log, which has all a moment after it is ready."""
    log = started.state / "triton" / "triton.log"
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not all((found := {name: _started_at(service, log.read_text()) for name, service in _SERVICES.items()}).values()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"Triton's log does not say where it listens: {found}")
        time.sleep(0.05)
    return {name: addresses[-1] for name, addresses in found.items()}


def _started_at(service: str, log: str) -> list[str]:
    return re.findall(rf"Started {service} at (\S+?)\"?$", log, re.MULTILINE)


@contextlib.contextmanager
def attached(
    addresses: Mapping[str, str], *more: str, state: Path | None = None, variables: Mapping[str, str] | None = None
) -> Iterator[Tidegate]:
    """A tidegate in front of what somebody else runs at these addresses: its processes are the gateway and nothing else."""
    url = f"http://{addresses['http']}?grpc_port={addresses['grpc'].rpartition(':')[2]}"
    with tidegate(["--triton-url", url, *more], state=state, variables=variables) as started:
        yield started


@contextlib.contextmanager
def tidegate(flags: Sequence[str], *, state: Path | None = None, variables: Mapping[str, str] | None = None) -> Iterator[Tidegate]:
    """`tidegate serve` with these flags and variables, on free ports and in a state folder of its own, or in one that is prepared."""
    with contextlib.nullcontext(str(state)) if state else tempfile.TemporaryDirectory(prefix="tidegate-perf-") as folder:
        ports = [part for protocol in ("http", "grpc", "metrics", "admin") for part in (f"--{protocol}-port", "0")]
        words = ["serve", "--state-dir", folder, *flags, *ports]
        process = processes.start_tidegate(words, None, {**os.environ, **(variables or {})})
        try:
            yield Tidegate(process.pid, _wait_for_addresses(Path(folder), process), Path(folder))
        finally:
            end(process, by=signal.SIGINT)  # no load balancer has to notice its end first


def _wait_for_addresses(state: Path, process: Started) -> dict[str, str]:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not (state / "endpoints.json").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("tidegate did not start; its words are above")
        time.sleep(0.1)
    endpoints = json.loads((state / "endpoints.json").read_text())
    return {protocol: endpoints[protocol].removeprefix("http://") for protocol in PROTOCOLS}
