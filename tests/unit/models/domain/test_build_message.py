from __future__ import annotations

import io

import pytest

from control_plane.models.domain.build_message import read_build_event
from control_plane.models.domain.model_build import BuildEvent, BuildEventKind
from python_backends.export.progress import JsonProgress


def test_what_the_recipes_program_says_is_understood() -> None:
    stream = io.StringIO()
    progress = JsonProgress(stream)
    progress.begun("m/int8", "not built yet")
    with progress.step("quantise"):
        pass
    progress.built("m/int8", is_auto_eligible=True)
    progress.built("m/pruned", is_auto_eligible=False)
    progress.skipped("m/bf16", "it needs PyTorch")
    progress.failed("tokenizer", "it is missing")
    progress.failed("", "no recipe")

    assert [read_build_event(line) for line in stream.getvalue().encode().splitlines()] == [
        BuildEvent(BuildEventKind.BEGUN, "m", "int8", "not built yet"),
        BuildEvent(BuildEventKind.STEP, text="quantise"),
        BuildEvent(BuildEventKind.BUILT, "m", "int8", is_auto_eligible=True),
        BuildEvent(BuildEventKind.BUILT, "m", "pruned"),
        BuildEvent(BuildEventKind.SKIPPED, "m", "bf16", "it needs PyTorch"),
        BuildEvent(BuildEventKind.FAILED, "tokenizer", "", "it is missing"),
        BuildEvent(BuildEventKind.FAILED, text="no recipe"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"UserWarning: something",
        b"[]",
        b"null",
        b"7",
        b'{"event": "else"}',
        b'{"target": "m"}',
        b'{"event": []}',
        b'{"event"',
        b"\xff",
    ],
)
def test_anything_else_is_no_event(line: bytes) -> None:
    assert read_build_event(line) is None
