"""The target is held by each limit and model, on the medians."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from perf.tenants import QUIET, _loud_callers, _request
from perf.tenants_report import FLOOD, MODELS, SHARE, Case, Report, Run


def run(p99_ms: float, quiet_per_s: float = 50.0) -> Run:
    return Run(p99_ms / 2, p99_ms, quiet_per_s, 100.0, 1)


RESULTS = {
    Case("one-by-one", 8, SHARE): [run(90.0), run(100.0), run(300.0)],
    Case("one-by-one", 8, FLOOD): [run(150.0), run(10.0), run(900.0)],
    Case("one-by-one", 64, SHARE): [run(100.0)],
    Case("one-by-one", 64, FLOOD): [run(151.0, 25.0)],
    Case("texts", 8, SHARE): [run(20.0)],
    Case("texts", 8, FLOOD): [run(20.0)],
}


def report(tmp_path: Path) -> Report:
    return Report(RESULTS, [], argparse.Namespace(rounds=3, duration_s=1.0, callers=8, flood=50, output=tmp_path))


def rows_of(markdown: str, model: str) -> list[str]:
    section = markdown.partition(f"## {model}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")][2:]


def test_the_target(tmp_path: Path) -> None:
    markdown = report(tmp_path).markdown()
    assert rows_of(markdown, "one-by-one") == [
        "| 8 | 50.0 | 75.0 | 100 | 150 | 1.50x | met | 50% | 100 | 100 | 2 |",
        "| 64 | 50.0 | 75.5 | 100 | 151 | 1.51x | **not met** | 25% | 100 | 100 | 2 |",
    ]


def test_a_limit_that_a_model_was_not_measured_with_is_left_out(tmp_path: Path) -> None:
    assert [row.split("|")[1] for row in rows_of(report(tmp_path).markdown(), "texts")] == [" 8 "]


def test_the_files_have_every_case(tmp_path: Path) -> None:
    report(tmp_path).write()
    cases = json.loads((tmp_path / "tenants.json").read_text())["cases"]
    assert [(case["model"], case["limit"], case["load"]) for case in cases] == [(each.model, each.limit, each.load) for each in RESULTS]
    assert "* **one-by-one**" in (tmp_path / "tenants.md").read_text()


def test_only_the_loud_tenants_load_changes() -> None:
    arguments = argparse.Namespace(callers=8, flood=50)
    assert [_loud_callers(load, arguments) for load in (SHARE, FLOOD)] == [8, 400]


def test_requests_show_their_tenants_key_once_and_name_their_model() -> None:
    for name, model in MODELS.items():
        head, _, body = _request(name, f"tg_{QUIET}").partition(b"\r\n\r\n")
        assert head.count(b"\r\nx-api-key: tg_quiet\r\n") == 1
        assert head.startswith(f"POST /v2/models/{model.model}/infer HTTP/1.1\r\n".encode())
        assert f"Content-Length: {len(body)}".encode() in head
