"""`tidegate tune` on the real Triton with the real perf_analyzer, in as little time as it can do with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import MODELS
from tests.e2e.tidegate import LONG_S, PROJECT, command, command_line, descendants, living, wait_for

MIX = {"data": [{"SECONDS": {"content": [seconds], "shape": [1]}} for seconds in (0.01, 0.02)]}
"""Requests of the tuner: the model sleeps for 10 or 20 ms and computes nothing, so that the test costs little CPU."""


BUDGETS_S = (40, 120)
"""In which others than the default can be measured, too; and on a slow or busy machine. A run takes all of it."""


class Tune:
    """A run of its own, whose temporary files lie in a folder of the test's."""

    def __init__(self, folder: Path, *, budget_s: int = BUDGETS_S[0]) -> None:
        self.out, self.temporary = folder / "out", folder / "tmp"
        self.temporary.mkdir(parents=True)
        (folder / "mix.json").write_text(json.dumps(MIX))
        flags = ["--model-repository", str(MODELS), "--mix", str(folder / "mix.json"), "--out", str(self.out), "--concurrency", "4"]
        self.process = subprocess.Popen(
            command("tune", "slow", "--p99-ms", "500", "--budget-s", str(budget_s), *flags),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=PROJECT,
            env={**os.environ, "COLUMNS": "160", "TMPDIR": str(self.temporary)},
            preexec_fn=_heed_interrupts,
        )

    def below(self, name: str) -> set[int]:
        """Processes beneath it whose command line has `name`."""
        return {pid for pid in living(descendants(self.process.pid)) if name.encode() in command_line(pid)}


def _heed_interrupts() -> None:
    """A shell has what it starts in the background ignore them, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def tuning(folder: Path, *, budget_s: int = BUDGETS_S[0]) -> Iterator[Tune]:
    running = Tune(folder, budget_s=budget_s)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.communicate()


@pytest.fixture
def tune(tmp_path: Path) -> Iterator[Tune]:
    with tuning(tmp_path) as running:
        yield running


@pytest.mark.timeout(600)
def test_a_run_writes_what_it_recommends_and_why_and_leaves_nothing(tmp_path: Path) -> None:
    for budget_s in BUDGETS_S:
        with tuning(tmp_path / str(budget_s), budget_s=budget_s) as tune:
            said, below = to_its_end(tune)
        table = json.loads((tune.out / "table.json").read_text())
        if len({row["candidate"] for row in table["medians"]}) > 1:
            break
    assert sorted(path.name for path in tune.out.iterdir()) == ["config.pbtxt", "plot.png", "table.json", "table.txt"]
    assert {row["candidate"] for row in table["medians"]} > {"default"}, "others were measured too"
    assert all(row["throughput"] > 0 and 0 < row["p50_ms"] <= row["p99_ms"] for row in table["medians"])
    assert "# tidegate tune: " in (tune.out / "config.pbtxt").read_text()
    assert table["recommended"]["reason"] in said.replace("\n", " ")
    assert not living(below)
    assert list(tune.temporary.iterdir()) == []


def to_its_end(tune: Tune) -> tuple[str, set[int]]:
    """What it said, and the processes that were beneath it."""
    wait_for(lambda: tune.below("bin/tritonserver"), what="the first server")
    below = descendants(tune.process.pid)
    said, _ = tune.process.communicate(timeout=BUDGETS_S[-1] + LONG_S)
    assert tune.process.returncode == 0, said
    return said, below


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_ended_in_a_measurement_it_leaves_nothing(tune: Tune, number: signal.Signals) -> None:
    wait_for(lambda: tune.below("perf_analyzer"), what="a measurement")
    below = living(descendants(tune.process.pid))
    assert len(below) >= 3, "Triton with its guardian, and perf_analyzer"
    tune.process.send_signal(number)
    said, _ = tune.process.communicate(timeout=LONG_S)
    assert tune.process.returncode != 0
    assert "Traceback" not in said
    wait_for(lambda: not living(below), what="the end of all it started")
    assert list(tune.temporary.iterdir()) == []
    assert not tune.out.exists()
