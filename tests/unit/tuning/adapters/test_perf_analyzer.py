from __future__ import annotations

import asyncio
import os
import zipfile
from pathlib import Path

import pytest

from control_plane.core.errors import StartupError, UpstreamFailed
from control_plane.tuning.adapters.perf_analyzer import AnalyzerRun, PerfAnalyzer, PerfAnalyzerLoad, RunResult, arguments, read_report
from control_plane.tuning.domain.candidates import Level
from tests.aio import run

REPORT = """Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,p50 latency,p90 latency,p95 latency,p99 latency
8,1234.5,67,1668,1,2000,3000,4000,5500
"""

# Plays perf_analyzer: notes its arguments, then does what its name in BEHAVIOUR says.
PROGRAM = """#!/bin/bash
echo "$@" >> "$NOTES"
while [ $# -gt 0 ]; do case "$1" in -f) report="$2";; -p) window="$2";; esac; shift; done
case "$BEHAVIOUR" in
  measures) cat > "$report" <<END
{report}END
  ;;
  fails) echo "error: no such model"; exit 1 ;;
  slow) if [ "$window" -lt 1000 ]; then echo "$WORDS"; exit 1; fi; cp "$GOOD" "$report" ;;
  hangs_once) [ "$(wc -l < "$NOTES")" -gt 1 ] || exec sleep 600; cp "$GOOD" "$report" ;;
  hangs) echo $$ > "$NOTES.pid"; sleep 100 ;;
esac
"""


class Lab:
    """A wheel with a program in place of the binary, and libraries to link."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache, self.libraries, self.notes = folder / "cache", folder / "libs", folder / "notes"
        (self.cache / "wheels").mkdir(parents=True)
        self.libraries.mkdir()
        for library in ("libcudart-1234.so.12.0", "libb64-1234.so.0d"):
            (self.libraries / library).touch()
        with zipfile.ZipFile(self.cache / "wheels" / "tritonclient-2.51.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("tritonclient-2.51.0.data/data/bin/perf_analyzer", PROGRAM.replace("{report}", REPORT))
        (folder / "good.csv").write_text(REPORT)
        monkeypatch.setenv("NOTES", str(self.notes))
        monkeypatch.setenv("GOOD", str(folder / "good.csv"))
        self._monkeypatch = monkeypatch

    def analyzer(self, behaviour: str = "measures", words: str = "") -> PerfAnalyzer:
        self._monkeypatch.setenv("BEHAVIOUR", behaviour)
        self._monkeypatch.setenv("WORDS", words)
        return PerfAnalyzer(self.cache, self.libraries)

    def pid(self) -> str:
        """Process id of the program that hangs, once it runs."""
        noted = Path(f"{self.notes}.pid")
        return noted.read_text().strip() if noted.exists() else ""

    def calls(self) -> list[str]:
        return self.notes.read_text().splitlines()


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


LOAD = AnalyzerRun("echo", "127.0.0.1:8000", "http", 8)


def test_arguments_of_a_count() -> None:
    load = AnalyzerRun("echo", "h:1", "grpc", 4, ("A:16", "B:1"), 200)
    assert " ".join(arguments(load)) == "-m echo -u h:1 -i grpc --shape A:16 --shape B:1 --concurrency-range 4 --request-count 200"


def test_arguments_of_windows_and_files() -> None:
    said = " ".join(arguments(AnalyzerRun("echo", "h:1", "http", 4, window_ms=250, input_data=(Path("/a.json"), Path("/b.json")))))
    assert "--input-data /a.json --input-data /b.json" in said
    assert "--measurement-mode time_windows -p 250" in said
    assert "--request-count" not in said


def test_reads_milliseconds(tmp_path: Path) -> None:
    report = tmp_path / "report.csv"
    report.write_text(REPORT)
    assert read_report(report, "") == RunResult(p50_ms=2.0, p99_ms=5.5, throughput=1234.5)


@pytest.mark.parametrize("text", ["", "Concurrency\n1\n", "p50 latency,p99 latency,Inferences/Second\n1,x,2\n", "p50 latency\n"])
def test_a_report_that_is_none_is_told_with_its_words(tmp_path: Path, text: str) -> None:
    report = tmp_path / "report.csv"
    report.write_text(text)
    with pytest.raises(UpstreamFailed, match=r"(?s)perf_analyzer failed.*connection refused"):
        read_report(report, "x" * 9000 + "connection refused")
    report.unlink()
    with pytest.raises(UpstreamFailed):
        read_report(report, "")


def test_the_binary_is_unpacked_once_with_its_libraries(lab: Lab) -> None:
    lab.analyzer()
    folder = lab.cache / "perf_analyzer-2.51.0"
    assert sorted(os.listdir(folder)) == ["libb64.so.0d", "libcudart.so.12", "perf_analyzer"]
    assert os.access(folder / "perf_analyzer", os.X_OK)
    assert (folder / "libcudart.so.12").resolve().name == "libcudart-1234.so.12.0"
    before = (folder / "perf_analyzer").stat().st_ino
    (lab.cache / "wheels" / "tritonclient-2.51.0-py3-none-any.whl").unlink()
    lab.analyzer()
    assert (folder / "perf_analyzer").stat().st_ino == before


def test_without_the_wheel_it_says_what_to_run(lab: Lab) -> None:
    next((lab.cache / "wheels").iterdir()).unlink()
    with pytest.raises(StartupError, match=r"tritonclient-2\.51\.0, which is not in .*wheels: run `make setup`"):
        lab.analyzer()


def test_without_tritons_libraries_it_says_so(lab: Lab) -> None:
    next(lab.libraries.glob("libb64*")).unlink()
    with pytest.raises(StartupError, match=r"libb64-\*\.so\.0d"):
        lab.analyzer()


def test_a_run_is_read(lab: Lab) -> None:
    assert lab.analyzer().run(LOAD) == RunResult(2.0, 5.5, 1234.5)
    assert run(lab.analyzer().run_async(LOAD)) == RunResult(2.0, 5.5, 1234.5)
    assert len(lab.calls()) == 2


def test_a_run_that_hangs_is_begun_again(lab: Lab) -> None:
    assert lab.analyzer("hangs_once").run(LOAD, usual_s=3.0).p99_ms == 5.5
    assert len(lab.calls()) == 2


def test_a_run_that_fails_is_told_in_its_words(lab: Lab) -> None:
    with pytest.raises(UpstreamFailed, match="error: no such model"):
        lab.analyzer("fails").run(LOAD)
    with pytest.raises(UpstreamFailed, match="error: no such model"):
        run(lab.analyzer("fails").run_async(LOAD))


def test_a_level_takes_about_as_long_as_it_may(lab: Lab) -> None:
    load = PerfAnalyzerLoad(lab.analyzer(), "echo", Path("/mix.json"))
    level = run(load.measure("127.0.0.1:1", concurrency=8, duration_s=3.15))
    assert level == Level(concurrency=8, throughput=1234.5, p50_ms=2.0, p99_ms=5.5)
    [call] = lab.calls()
    assert "-p 1000 " in call
    assert "--input-data /mix.json" in call


@pytest.mark.parametrize(
    "words", ["No valid requests recorded within time interval.", "Failed to obtain stable measurement within 3 windows"]
)
def test_where_no_request_ends_in_time_the_window_grows(lab: Lab, words: str) -> None:
    load = PerfAnalyzerLoad(lab.analyzer("slow", words), "echo", Path("/mix.json"))
    assert run(load.measure("127.0.0.1:1", concurrency=8, duration_s=0.45)).throughput == 1234.5
    assert [call.split(" -p ")[1].split()[0] for call in lab.calls()] == ["100", "400", "1600"]


@pytest.mark.parametrize("behaviour", ["slow", "fails"])
def test_what_a_longer_window_does_not_mend_is_told(lab: Lab, behaviour: str) -> None:
    load = PerfAnalyzerLoad(lab.analyzer(behaviour, words="connection refused"), "echo", Path("/mix.json"))
    with pytest.raises(UpstreamFailed):
        run(load.measure("127.0.0.1:1", concurrency=8, duration_s=0.45))
    assert len(lab.calls()) == 1


def test_cancelling_ends_the_program(lab: Lab) -> None:
    async def cancel() -> None:
        measuring = asyncio.get_running_loop().create_task(lab.analyzer("hangs").run_async(LOAD))
        while not lab.pid():
            await asyncio.sleep(0.01)
        measuring.cancel()
        await asyncio.wait([measuring])
        assert measuring.cancelled()

    run(cancel())
    assert not Path(f"/proc/{lab.pid()}").exists(), "cancelled, it has waited for the end"
