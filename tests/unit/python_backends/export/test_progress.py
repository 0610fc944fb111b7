"""Progress reports of a build, for people and for a program."""

from __future__ import annotations

import io
import json
import re

import pytest

from python_backends.export.progress import JsonProgress, Progress


def test_a_step_is_named_when_it_begins_and_timed_when_it_ends() -> None:
    stream = io.StringIO()

    with Progress(stream).step("export"):
        assert stream.getvalue() == "  export ... "

    assert re.fullmatch(r"  export \.\.\. \d+\.\d s\n", stream.getvalue())


def test_a_step_that_fails_ends_its_line() -> None:
    stream = io.StringIO()

    with pytest.raises(ValueError, match="no"), Progress(stream).step("export"):
        raise ValueError("no")

    assert stream.getvalue().endswith(" s\n")


def play(progress: Progress) -> None:
    """A build of two targets."""
    progress.begun("m/int8", "not built yet")
    with progress.step("quantise"):
        pass
    progress.found("spearman 0.8")
    progress.built("m/int8", is_auto_eligible=True)
    progress.skipped("m/bf16", "it needs PyTorch")
    progress.failed("m/engine", "it does not fit")
    progress.failed("", "no recipe")


def test_people_get_lines(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()

    play(Progress(stream))

    lines = r"m/int8: not built yet\n  quantise \.\.\. \d+\.\d s\n  spearman 0\.8\nm/bf16: skipped, it needs PyTorch\n"
    assert re.fullmatch(lines, stream.getvalue())
    assert capsys.readouterr().err == "error: m/engine: it does not fit\nerror: no recipe\n"


def test_a_program_gets_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()

    play(JsonProgress(stream))

    assert [json.loads(line) for line in stream.getvalue().splitlines()] == [
        {"event": "begun", "target": "m/int8", "text": "not built yet"},
        {"event": "step", "text": "quantise"},
        {"event": "step", "text": "spearman 0.8"},
        {"event": "built", "target": "m/int8", "is_auto_eligible": True},
        {"event": "skipped", "target": "m/bf16", "text": "it needs PyTorch"},
        {"event": "failed", "target": "m/engine", "text": "it does not fit"},
        {"event": "failed", "target": "", "text": "no recipe"},
    ]
    assert capsys.readouterr().err == ""
