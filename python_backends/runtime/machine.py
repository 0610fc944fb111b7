"""Identifies the kind of this machine, on which latency tables and INT8 results depend; measurements of other
kinds are not used.

It uses the standard library only, and no GPU library: recipes and stubs call it before they know what they
will load.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from python_backends.runtime.engines.cpu import usable_cpu_count

CPUINFO = Path("/proc/cpuinfo")
NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")

NO_GPU = "no NVIDIA GPU"

# CPU flags as Linux names them, the best first. For each of them ONNX Runtime and oneDNN have their own
# matrix kernels, with their own speed and INT8 rounding: without VNNI two products are added in 16 bits,
# which saturates.
INSTRUCTION_SETS = ("amx_int8", "avx512_vnni", "avx_vnni", "avx512f", "avx2", "asimddp")
BFLOAT16 = frozenset({"amx_bf16", "avx512_bf16", "bf16"})


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine: its `kind` ("x86_64 avx512_vnni", or "NVIDIA H200" for its GPU), the CPU's name, and its
    usable CPUs.
    """

    kind: str
    processor: str
    cpus: int


def this_machine(device: str, *, cpuinfo: Path = CPUINFO, gpus: Path = NVIDIA_GPUS) -> Machine:
    """Describe this machine for a `device` ("cpu" or "gpu"); for "gpu" the kind is the first GPU's name, or
    `NO_GPU`.
    """
    facts = _facts(cpuinfo)
    architecture = platform.machine()
    kind = gpu_name(gpus) or NO_GPU if device == "gpu" else cpu_kind(architecture, _flags(facts))
    return Machine(kind, facts.get("model name") or architecture, usable_cpu_count())


def cpu_kind(architecture: str, flags: Iterable[str]) -> str:
    """Return the architecture with its best instruction set for matrix products."""
    present = set(flags)
    best = next((name for name in INSTRUCTION_SETS if name in present), None)
    return f"{architecture} {best}" if best else architecture


def computes_bfloat16(cpuinfo: Path = CPUINFO) -> bool:
    """Whether the CPU multiplies bfloat16 itself; others unpack each value, which is several times slower than FP32."""
    return bool(_flags(_facts(cpuinfo)) & BFLOAT16)


def gpu_name(gpus: Path = NVIDIA_GPUS) -> str | None:
    """Return the first GPU's name as the driver reports it; None without a GPU."""
    names = [_facts(path / "information").get("Model") for path in sorted(gpus.glob("*"))]
    return next(filter(None, names), None)


def _flags(facts: Mapping[str, str]) -> set[str]:
    return set(facts.get("flags", facts.get("Features", "")).split())


def _facts(path: Path) -> Mapping[str, str]:
    """Read "key : value" lines, the first of each key; empty if the file cannot be read."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in reversed(lines) if ":" in line)
    return {key.strip(): " ".join(value.split()) for key, value in pairs}
