"""Starts everything that `perf.embedding` compares; all of it runs to the end, idle while another is measured."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perf.load.inference_requests import Form, naive_json, triton_binary, triton_grpc, triton_json
from perf.servers.cache_answers import CacheAnswers
from perf.servers.processes import free_port, running
from perf.servers.serving import Tidegate, serving_models, triton_addresses
from perf.servers.variants import place_ensemble

MODEL = "text_embedding"
SHIPPED = "auto"
"""The variant of the shipped configuration: the model chooses."""

FP32_PEERS = ("flask", "fastapi", "fastapi-httpx-512")
"""Those that answer to FP32's rounding as PyTorch does; it is what they run."""

_FORMS = {
    "triton-http": triton_binary(MODEL), "triton-grpc": triton_grpc(MODEL),
    "tidegate-http": triton_binary(MODEL), "tidegate-json": triton_json(MODEL), "tidegate-grpc": triton_grpc(MODEL),
}  # fmt: skip
PEERS = (*FP32_PEERS, *_FORMS)

_START_TIMEOUT_S = 180.0
"""PyTorch and transformers take many seconds to import."""


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    form: Form
    address: str
    pid: int
    """Process above all that are the peer's, for what they use; Tidegate's are also above Triton's."""
    triton: dict[str, str] | None = None
    """The addresses of the Triton that it asks."""
    gateway: Tidegate | None = None
    """The one that it is."""

    @property
    def protocol(self) -> str:
        return self.form.protocol

    def cache_answers(self) -> CacheAnswers:
        """Return the counts of its response cache, if it has one."""
        return CacheAnswers.at(self.gateway.metrics) if self.gateway else CacheAnswers(0, 0)


def start_peers(stack: contextlib.ExitStack, arguments: argparse.Namespace) -> list[Peer]:
    """Start the peers, in the order of `PEERS`."""
    started = [stack.enter_context(_naive(name)) for name in FP32_PEERS if name in arguments.peers]
    wanted = [name for name in _FORMS if name in arguments.peers]
    return [*started, *stack.enter_context(_tidegate(wanted, arguments))] if wanted else started


@contextlib.contextmanager
def _naive(name: str) -> Iterator[Peer]:
    with contextlib.ExitStack() as stack:
        if name == "fastapi-httpx-512":
            upstream, _ = stack.enter_context(_python("fastapi_torch", "--pad-to", "512"))
            address, pid = stack.enter_context(_python("fastapi_gateway", "--upstream", upstream))
        else:
            address, pid = stack.enter_context(_python(f"{name}_torch"))
        yield Peer(name, naive_json(), address, pid)


@contextlib.contextmanager
def _python(module: str, *flags: str) -> Iterator[tuple[str, int]]:
    """Start a peer that is a Python program; give its address, and the pid."""
    port = free_port()
    command = [sys.executable, "-m", f"perf.peers.naive.{module}", "--port", str(port), *flags]
    with running(command, port, start_timeout_s=_START_TIMEOUT_S) as pid:
        yield f"127.0.0.1:{port}", pid


@contextlib.contextmanager
def _tidegate(names: Sequence[str], arguments: argparse.Namespace) -> Iterator[list[Peer]]:
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-perf-") as folder,
        serving_models(_repositories(Path(folder), arguments), [MODEL]) as started,
    ):
        triton = triton_addresses(started)
        peers = []
        for name in names:
            form, is_gateway = _FORMS[name], name.startswith("tidegate")
            addresses = started.addresses if is_gateway else triton
            peers.append(Peer(name, form, addresses[form.protocol], started.pid, triton, started if is_gateway else None))
        yield peers


def _repositories(folder: Path, arguments: argparse.Namespace) -> list[Path]:
    """None but the shipped ones, or a copy of the models that serves the variant that was asked for."""
    if arguments.variant == SHIPPED:
        return []
    place_ensemble(folder, arguments.variant)
    return [folder]
