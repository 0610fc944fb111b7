"""Runs NVIDIA's perf_analyzer, the real binary out of the pinned tritonclient wheel, and reads what it measured."""

from __future__ import annotations

import csv
import os
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

_MEMBER = "tritonclient-2.51.0.data/data/bin/perf_analyzer"
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """What one run asks of the server."""

    model: str
    url: str
    protocol: str
    """`http` or `grpc`."""
    concurrency: int
    shapes: tuple[str, ...]
    """perf_analyzer's `--shape`, one per input whose shape is open, as in `INPUT0:384`."""
    request_count: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds and requests per second of one run."""

    p50_ms: float
    p99_ms: float
    throughput: float


class PerfAnalyzer:
    """The binary, unpacked into `cache_dir` with the two libraries that Debian lacks, out of Triton's own wheel."""

    def __init__(self, cache_dir: Path, triton_libraries: Path) -> None:
        folder = cache_dir / "perf_analyzer-2.51.0"
        folder.mkdir(parents=True, exist_ok=True)
        self._binary = folder / "perf_analyzer"
        if not self._binary.exists():
            _unpack(cache_dir / "wheels", self._binary)
        for name, pattern in (("libcudart.so.12", "libcudart-*.so.12*"), ("libb64.so.0d", "libb64-*.so.0d")):
            link = folder / name
            link.unlink(missing_ok=True)
            link.symlink_to(next(triton_libraries.glob(pattern)).resolve())
        self._environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}

    def run(self, load: Load) -> Measured:
        """Send `request_count` requests, `concurrency` at a time. Raises RuntimeError with its words when it fails."""
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.csv")
            done = subprocess.run(
                [self._binary, *_arguments(load), "-f", report], env=self._environment, capture_output=True, text=True, timeout=_TIMEOUT_S
            )
            if done.returncode != 0 or not report.exists():
                raise RuntimeError(f"perf_analyzer failed on {load}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
            row = next(csv.DictReader(report.read_text().splitlines()))
        return Measured(float(row["p50 latency"]) / 1000, float(row["p99 latency"]) / 1000, float(row["Inferences/Second"]))


def _arguments(load: Load) -> list[str]:
    return [
        "-m", load.model, "-u", load.url, "-i", load.protocol, *(part for shape in load.shapes for part in ("--shape", shape)),
        "--concurrency-range", str(load.concurrency), "--request-count", str(load.request_count),
    ]  # fmt: skip


def _unpack(wheels: Path, binary: Path) -> None:
    wheel = next(wheels.glob("tritonclient-2.51.0-*.whl"), None)
    if wheel is None:
        raise RuntimeError(f"no tritonclient-2.51.0 wheel in {wheels}: run `make setup`")
    partial = binary.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as archive:
        partial.write_bytes(archive.read(_MEMBER))
    partial.chmod(0o755)
    partial.rename(binary)
