"""Runs NVIDIA's perf_analyzer, the binary from the pinned tritonclient wheel, and reads its report.

Used by `tidegate tune` (as `tuning/ports.LoadGenerator`) and by the scenarios in `perf/`.
"""

from __future__ import annotations

import asyncio
import csv
import os
import signal
import subprocess
import tempfile
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from control_plane.core.errors import StartupError, UpstreamFailed
from control_plane.tuning.domain.candidates import Level

_VERSION = "2.51.0"
_MEMBER = f"tritonclient-{_VERSION}.data/data/bin/perf_analyzer"
_USUAL_S = 30.0
"""Longest usual run. perf_analyzer 2.51 hangs at the end of some runs, also without a gateway (1 of 59 with 8
gRPC callers on a busy machine), and is then run again."""
_TIMEOUT_S = 120.0
_WINDOWS = 3
"""Measurement windows of a run: perf_analyzer compares the last three for stability; here any three count as
stable."""

_OVERHEAD_S = 0.15
"""Time of a run besides its windows: the start, the model's metadata, the report."""

_SHORTEST_WINDOW_MS = 100
_TOO_SHORT = ("No valid requests recorded", "Failed to obtain stable measurement")
_LONGER_WINDOWS = (1, 4, 16)
"""Factors by which the window is lengthened in turn, if no request ended within it."""


@dataclass(frozen=True, slots=True)
class AnalyzerRun:
    """What one run asks: the model, the address, the concurrency and the requests."""

    model: str
    url: str
    protocol: str
    """`http` or `grpc`."""
    concurrency: int
    shapes: tuple[str, ...] = ()
    """perf_analyzer's `--shape`, one per input whose shape is open, as in `INPUT0:384`."""
    request_count: int = 0
    """Number of requests to send; 0: as many as fit into three windows of `window_ms`."""
    window_ms: int = 500
    input_data: tuple[Path, ...] = ()
    """perf_analyzer's JSON files of requests; without any, it sends random data."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of one run: latencies in milliseconds, throughput in requests per second."""

    p50_ms: float
    p99_ms: float
    throughput: float


class PerfAnalyzer:
    """The perf_analyzer binary, unpacked into `cache_dir` with two libraries from Triton's wheel that Debian
    lacks.
    """

    def __init__(self, cache_dir: Path, triton_libraries: Path) -> None:
        """Unpack it once. Raises StartupError if its wheel was not downloaded, or the folder cannot be
        written.
        """
        folder = cache_dir / f"perf_analyzer-{_VERSION}"
        self._binary = folder / "perf_analyzer"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not self._binary.exists():
                _unpack(cache_dir / "wheels", self._binary)
            for name, pattern in (("libcudart.so.12", "libcudart-*.so.12*"), ("libb64.so.0d", "libb64-*.so.0d")):
                _link(folder / name, _library(triton_libraries, pattern))
        except OSError as exc:
            raise StartupError(f"perf_analyzer cannot be unpacked into {folder}: {exc}") from exc
        self._environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}

    def run(self, load: AnalyzerRun, *, usual_s: float = _USUAL_S) -> RunResult:
        """Run it and wait in this thread; a run that takes longer than `usual_s` is killed and repeated once.

        Raises:
            UpstreamFailed: it failed; the text ends with its output.
        """
        with suppress(subprocess.TimeoutExpired):
            return self._run_within(load, usual_s)
        return self._run_within(load, _TIMEOUT_S)

    def _run_within(self, load: AnalyzerRun, timeout_s: float) -> RunResult:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.csv")
            done = subprocess.run(
                self._command(load, report), env=self._environment, capture_output=True, text=True, timeout=timeout_s, check=False
            )
            return read_report(report, done.stdout + done.stderr)

    async def run_async(self, load: AnalyzerRun) -> RunResult:
        """Run it without blocking the event loop; cancelling kills perf_analyzer. Raises UpstreamFailed as
        `run` does.
        """
        with tempfile.TemporaryDirectory() as folder:
            report, words = Path(folder, "report.csv"), Path(folder, "words")
            process = self._start(load, report, words)
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    await asyncio.to_thread(process.wait)
            except TimeoutError as exc:
                raise UpstreamFailed(f"perf_analyzer did not end within {_TIMEOUT_S:g} s on {load.model}") from exc
            finally:
                if process.poll() is None:
                    with suppress(ProcessLookupError):  # the process has just ended by itself
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            return _read_files(report, words)

    def _start(self, load: AnalyzerRun, report: Path, words: Path) -> subprocess.Popen[bytes]:
        """Start it synchronously: asyncio's subprocess start can be cancelled halfway, and would leave the
        process running.
        """
        with words.open("wb") as said:
            return subprocess.Popen(
                self._command(load, report),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that Ctrl-C does not reach it: we end it ourselves
            )

    def _command(self, load: AnalyzerRun, report: Path) -> list[str]:
        return [str(self._binary), *arguments(load), "-f", str(report)]


class PerfAnalyzerLoad:
    """Load generator that sends one mix to one model; implements `tuning/ports.LoadGenerator`.

    It uses gRPC, since perf_analyzer cannot reach Unix sockets over HTTP.
    """

    def __init__(self, analyzer: PerfAnalyzer, model: str, input_data: Path) -> None:
        self._analyzer = analyzer
        self._model = model
        self._input_data = input_data

    async def measure(self, address: str, *, concurrency: int, duration_s: float) -> Level:
        """Measure; takes longer than `duration_s` where no request ends within it. Raises UpstreamFailed."""
        window_ms = max(_SHORTEST_WINDOW_MS, round((duration_s - _OVERHEAD_S) * 1000 / _WINDOWS))
        for longer in _LONGER_WINDOWS:
            load = AnalyzerRun(self._model, address, "grpc", concurrency, window_ms=window_ms * longer, input_data=(self._input_data,))
            try:
                measured = await self._analyzer.run_async(load)
            except UpstreamFailed as exc:
                if not any(words in str(exc) for words in _TOO_SHORT) or longer == _LONGER_WINDOWS[-1]:
                    raise
            else:
                break
        return Level(concurrency, measured.throughput, measured.p50_ms, measured.p99_ms)


def arguments(load: AnalyzerRun) -> list[str]:
    """Return perf_analyzer's arguments, without the one for its report."""
    count = ["--request-count", str(load.request_count)]
    # `-s 1000000` accepts three windows however much they differ: callers judge noise themselves, over
    # several runs.
    windows = ["--measurement-mode", "time_windows", "-p", str(load.window_ms), "-s", "1000000", "-r", str(_WINDOWS)]
    return [
        "-m", load.model, "-u", load.url, "-i", load.protocol, *(part for shape in load.shapes for part in ("--shape", shape)),
        *(part for path in load.input_data for part in ("--input-data", str(path))),
        "--concurrency-range", str(load.concurrency), *(count if load.request_count else windows),
    ]  # fmt: skip


def read_report(report: Path, said: str) -> RunResult:
    """Read the CSV report. Raises UpstreamFailed, with the end of the output `said`, if there is none."""
    try:
        row = next(csv.DictReader(report.read_text().splitlines()))
        return RunResult(float(row["p50 latency"]) / 1000, float(row["p99 latency"]) / 1000, float(row["Inferences/Second"]))
    except (OSError, StopIteration, KeyError, ValueError, TypeError) as exc:
        raise UpstreamFailed(f"perf_analyzer failed:\n{said[-2000:]}") from exc


def _read_files(report: Path, words: Path) -> RunResult:
    return read_report(report, words.read_text(errors="replace"))


def _library(folder: Path, pattern: str) -> Path:
    found = next(folder.glob(pattern), None)
    if found is None:
        raise StartupError(f"perf_analyzer needs {pattern}, which is not in {folder}: remove that folder's parent and run `make setup`")
    return found.resolve()


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return  # another run may be using it
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def _unpack(wheels: Path, binary: Path) -> None:
    wheel = next(wheels.glob(f"tritonclient-{_VERSION}-*.whl"), None)
    if wheel is None:
        raise StartupError(f"perf_analyzer is in the wheel tritonclient-{_VERSION}, which is not in {wheels}: run `make setup`")
    partial = binary.with_suffix(f".{os.getpid()}.partial")
    with zipfile.ZipFile(wheel) as archive:
        partial.write_bytes(archive.read(_MEMBER))
    partial.chmod(0o755)
    partial.rename(binary)
