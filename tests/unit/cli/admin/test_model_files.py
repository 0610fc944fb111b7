"""`tidegate models init` and `validate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.command import Tidegate


@pytest.mark.parametrize("kind", ["python", "onnx", "ensemble"])
def test_what_init_writes_is_valid_and_the_next_steps_are_told(tidegate: Tidegate, tmp_path: Path, kind: str) -> None:
    made = tidegate("models", "init", "mine", "--like", kind, "-r", tmp_path)
    assert made.status == 0
    assert all(Path(line).is_file() for line in made.out.splitlines())
    assert all(step in made.err for step in (f"tidegate models validate {tmp_path}", f"--model-repository {tmp_path}", "models load mine"))
    checked = tidegate("models", "validate", tmp_path)
    assert (checked.status, checked.out) == (0, "")
    assert checked.err.startswith("nothing wrong with mine")


def test_mistakes_are_told_by_file_and_line_and_by_the_exit_status(tidegate: Tidegate, tmp_path: Path) -> None:
    tidegate("models", "init", "mine", "-r", tmp_path)
    config = tmp_path / "mine" / "config.pbtxt"
    config.write_text(config.read_text().replace("dims: [ 4 ]", "dims: [ 0 ]", 1))
    found = tidegate("models", "validate", tmp_path / "mine")
    assert (found.status, found.out) == (1, f"{config}:5: input 'INPUT': dims are sizes from 1 on, or -1 for any size\n")
    told = json.loads(tidegate("models", "validate", tmp_path, "-o", "json").out)
    assert [(each["file"], each["line"]) for each in told] == [(str(config), 5)]


def test_where_there_are_no_models_it_says_what_one_is(tidegate: Tidegate, tmp_path: Path) -> None:
    found = tidegate("models", "validate", tmp_path)
    assert (found.status, "has no models: a model is a folder with config.pbtxt" in found.err) == (1, True)
