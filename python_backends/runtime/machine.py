"""What kind of machine this is: what latency tables and INT8 results depend on, so that one measured elsewhere is not believed here.

Standard library only, and no GPU library: recipes and stubs both ask, before either knows what it will load.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from python_backends.runtime.cpu import usable_cpu_count

CPUINFO = Path("/proc/cpuinfo")
NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")

NO_GPU = "no NVIDIA GPU"

# Linux's names, the best first. Each has matrix kernels of its own in ONNX Runtime and oneDNN, with their own speed and INT8 rounding:
# without VNNI two products are added in 16 bits, which saturates.
INSTRUCTION_SETS = ("amx_int8", "avx512_vnni", "avx_vnni", "avx512f", "avx2", "asimddp")


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine: its `kind` ("x86_64 avx512_vnni", with a GPU "NVIDIA H200"), the CPU's name, and how many CPUs may be used."""

    kind: str
    processor: str
    cpus: int


def this_machine(device: str, *, cpuinfo: Path = CPUINFO, gpus: Path = NVIDIA_GPUS) -> Machine:
    """This machine as a `device` ("cpu" or "gpu") sees it; the kind is `NO_GPU` where there is none, and that of the first of several."""
    facts = _facts(cpuinfo)
    architecture = platform.machine()
    kind = gpu_name(gpus) or NO_GPU if device == "gpu" else cpu_kind(architecture, facts.get("flags", facts.get("Features", "")).split())
    return Machine(kind, facts.get("model name") or architecture, usable_cpu_count())


def cpu_kind(architecture: str, flags: Iterable[str]) -> str:
    """The architecture and the best of its instruction sets that matters to matrix products."""
    present = set(flags)
    best = next((name for name in INSTRUCTION_SETS if name in present), None)
    return f"{architecture} {best}" if best else architecture


def gpu_name(gpus: Path = NVIDIA_GPUS) -> str | None:
    """The name of the first GPU as the driver has it, None without one."""
    names = [_facts(path / "information").get("Model") for path in sorted(gpus.glob("*"))]
    return next(filter(None, names), None)


def _facts(path: Path) -> Mapping[str, str]:
    """The first "key : value" of each key, and none of a file that cannot be read."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in reversed(lines) if ":" in line)
    return {key.strip(): " ".join(value.split()) for key, value in pairs}
