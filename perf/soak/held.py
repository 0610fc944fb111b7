"""What a gateway and its Tritons hold while a soak goes on: memory, open descriptors and threads."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from perf.servers.processes import tree

GATEWAY, TRITON = "gateway", "triton"
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Held:
    """Memory, open descriptors and threads that all processes of one kind hold together."""

    mib: float
    descriptors: float
    threads: float


class Sample(NamedTuple):
    at_s: float
    held: dict[str, Held]


def held(pid: int) -> dict[str, Held]:
    """Return what a tidegate and the Tritons beneath it hold. Models' own processes are left out: cold ones come and go."""
    found: dict[str, list[Held]] = {GATEWAY: [], TRITON: []}
    for each in tree(pid):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            program = Path(f"/proc/{each}/cmdline").read_bytes().split(b"\0")[0]
            if not program.endswith(b"python_backend_stub"):
                found[TRITON if program.endswith(b"tritonserver") else GATEWAY].append(_held(each))
    return {kind: Held(*map(sum, zip(*map(astuple, of_kind), strict=True))) for kind, of_kind in found.items() if of_kind}


def usual(samples: Sequence[Sample], kind: str, from_s: float, to_s: float) -> Held:
    """The median of each figure in that time. Raises StatisticsError: there is no sample of it."""
    chosen = [astuple(sample.held[kind]) for sample in samples if from_s <= sample.at_s <= to_s and kind in sample.held]
    return Held(*(median(column) for column in (zip(*chosen, strict=True) if chosen else [()])))


@contextlib.contextmanager
def sampled(pid: int, every_s: float) -> Iterator[list[Sample]]:
    """Inside, the list grows by one sample each time."""
    samples: list[Sample] = []
    began_s, ended = time.monotonic(), threading.Event()

    def sample() -> None:
        while not ended.wait(every_s):
            samples.append(Sample(time.monotonic() - began_s, held(pid)))

    thread = threading.Thread(target=sample, name="samples")
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def _held(pid: int) -> Held:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    kib = float(status.get("VmRSS", "0 kB").split()[0])
    return Held(kib * 1024 / _MIB, float(len(list(Path(f"/proc/{pid}/fd").iterdir()))), float(status["Threads"]))
