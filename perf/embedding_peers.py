"""Starts everything that `perf.embedding` compares; all of it runs to the end, idle while another is measured."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perf.inference_requests import Form, naive_json, triton_binary, triton_grpc, triton_json
from perf.processes import free_port, running
from perf.serving import serving_models, triton_addresses
from perf.variants import place_ensemble

MODEL = "text_embedding"
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
    """Of the process above all that are the peer's, for what they use; Tidegate's are also above Triton's."""
    triton: dict[str, str] | None = None
    """The addresses of the Triton that it asks."""

    @property
    def door(self) -> str:
        return self.form.door


def start_peers(stack: contextlib.ExitStack, arguments: argparse.Namespace) -> list[Peer]:
    """In the order of `PEERS`."""
    started = [stack.enter_context(_naive(name)) for name in FP32_PEERS if name in arguments.peers]
    wanted = [name for name in _FORMS if name in arguments.peers]
    return [*started, *stack.enter_context(_tidegate(wanted, arguments))] if wanted else started


@contextlib.contextmanager
def _naive(name: str) -> Iterator[Peer]:
    port = free_port()
    with contextlib.ExitStack() as stack:
        if name == "fastapi-httpx-512":
            upstream = free_port()
            stack.enter_context(_python("fastapi_torch", upstream, "--pad-to", "512"))
            pid = stack.enter_context(_python("fastapi_gateway", port, "--upstream", f"127.0.0.1:{upstream}"))
        else:
            pid = stack.enter_context(_python(f"{name}_torch", port))
        yield Peer(name, naive_json(), f"127.0.0.1:{port}", pid)


def _python(module: str, port: int, *flags: str) -> contextlib.AbstractContextManager[int]:
    command = [sys.executable, "-m", f"perf.peers.naive.{module}", "--port", str(port), *flags]
    return running(command, port, start_timeout_s=_START_TIMEOUT_S)


@contextlib.contextmanager
def _tidegate(names: Sequence[str], arguments: argparse.Namespace) -> Iterator[list[Peer]]:
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as folder:
        place_ensemble(Path(folder), arguments.variant, encoder=arguments.encoder)
        with serving_models([Path(folder)], [MODEL]) as started:
            triton = triton_addresses(started)
            addresses = {"triton": triton, "tidegate": started.addresses}
            yield [Peer(name, _FORMS[name], addresses[name.partition("-")[0]][_FORMS[name].door], started.pid, triton) for name in names]
