"""Targets are met or not by medians, stages add up to the latency, and what was not measured is left out."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from perf import embedding_plot
from perf.embedding_report import BARE, Case, Report, Run, ratio
from perf.embedding_stages import Counted, Stages, stages
from perf.triton_statistics import Statistics

TEXTS = ["queries.txt: 300 texts"]


def run(requests_per_s: float, p50_ms: float) -> Run:
    return Run(requests_per_s, p50_ms, 2 * p50_ms, 2 * p50_ms, float("nan"), 1.0, 0.25, 0)


def report(results: dict[Case, list[Run]], tmp_path: Path, measured: dict[int, Stages] | None = None) -> Report:
    arguments = argparse.Namespace(rounds=1, duration_s=1.0, variant="int8", output=tmp_path, callers=[1, 32])
    return Report(results, TEXTS, arguments, measured or {}, {"flask": {"cosine_min": 1.0, "cosine_mean": 1.0}})


RESULTS = {
    Case("95/5", 0.0, 1, "flask"): [run(50, 20.0)],
    Case("95/5", 0.0, 1, "tidegate-http"): [run(400, 9.0), run(400, 2.0), run(400, 2.0)],
    Case("95/5", 0.0, 32, "flask"): [run(100, 300.0)],
    Case("95/5", 0.0, 32, "tidegate-http"): [run(1400, 20.0)],
    Case("equal", 0.0, 0, BARE): [run(2000, 1.0)],
    Case("equal", 0.0, 32, "tidegate-http"): [run(1300, 20.0)],
}


def target_rows(markdown: str) -> dict[str, list[str]]:
    """Cells by the target's words."""
    section = markdown.partition("## Targets")[2].partition("## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in rows[2:]}


def test_targets_compare_medians_and_leave_out_what_was_not_measured(tmp_path: Path) -> None:
    assert target_rows(report(RESULTS, tmp_path).markdown()) == {
        "p50 alone, Flask + PyTorch's / ours": ["95/5", "1", "10.0", ">= 8", "met"],
        "throughput, ours / Flask + PyTorch's": ["95/5", "32", "14.0", ">= 15", "**not met**"],
        "throughput of 16 tokens, ours / bare ONNX Runtime's": ["equal", "32", "0.65", ">= 0.6", "met"],
    }


def test_limits_that_must_not_be_passed(tmp_path: Path) -> None:
    rows = target_rows(report({Case("equal", 0.0, 1, "tidegate-http"): [run(600, 1.4), run(600, 1.6), run(600, 2.4)]}, tmp_path).markdown())
    assert rows == {
        "p50 of 16 tokens, ms": ["equal", "1", "1.60", "<= 1.5", "**not met**"],
        "p99 of 16 tokens, ms": ["equal", "1", "3.20", "<= 4", "met"],
    }


def test_the_files_say_what_was_measured_and_with_which_texts(tmp_path: Path) -> None:
    report(RESULTS, tmp_path, {1: Stages(1, 2, 3, 4, 5)}).write()
    document = json.loads((tmp_path / "embedding.json").read_text())
    assert document["texts"] == TEXTS
    assert [row["median"]["p50_ms"] for row in document["cases"]] == [20.0, 2.0, 300.0, 20.0, 1.0, 20.0]
    assert [len(row["rounds"]) for row in document["cases"]] == [1, 3, 1, 1, 1, 1]
    words = (tmp_path / "embedding.md").read_text()
    assert "queries.txt: 300 texts" in words
    assert "25% of one core at most" in words
    assert "| 1 | 1.00 | 2.00 | 3.00 | 4.00 | 5.00 | 15.0 |" in words


def test_ratio() -> None:
    assert ratio(5.0, 20.0, is_latency=True) == 4.0
    assert ratio(40.0, 20.0, is_latency=False) == 2.0
    assert ratio(1.4, None, is_latency=True) == 1.4


def counted() -> Counted:
    def model(**ms: float) -> Statistics:
        durations = {"success": 0.0, "queue": 0.0, "compute_input": 0.0, "compute_infer": 0.0, "compute_output": 0.0}
        return Statistics(10, durations | ms)

    batching = {
        "tidegate_batching_queue_seconds_total": 0.002,
        "tidegate_batching_requests_total": 10.0,
        "tidegate_batching_compute_seconds_total": 0.006,
        "tidegate_batching_batches_total": 5.0,
    }
    return Counted(model(success=25.0), model(queue=3.0), batching)


def test_stages_add_up_to_the_latency() -> None:
    measured = stages(through_ms=4.0, straight_ms=3.0, counted=counted())
    assert measured == Stages(
        gateway=1.0,
        client_and_http=pytest.approx(0.5),
        encoder_wait=pytest.approx(0.5),  # 0.3 in Triton, 0.2 in the backend
        encoder=pytest.approx(1.2),
        scheduling=pytest.approx(0.8),
    )
    assert measured.total == pytest.approx(4.0)


@pytest.mark.parametrize("measured", [{}, {1: Stages(1, 2, 3, 4, 5), 32: Stages(0.1, 2, 3, 60, -0.1)}], ids=["no stages", "stages"])
def test_the_plot_is_drawn_from_what_there_is(tmp_path: Path, measured: dict[int, Stages]) -> None:
    embedding_plot.draw(report(RESULTS, tmp_path, measured))
    assert (tmp_path / "embedding.png").read_bytes().startswith(b"\x89PNG")
