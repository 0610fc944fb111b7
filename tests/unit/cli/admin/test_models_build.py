"""`tidegate models build`: the model's folder is found in the configured repositories, and the recipe runs as a program of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from control_plane.cli import main
from tests.unit.python_backends.export.recipes import model_folder, variants_folder


def tidegate(*arguments: object, repositories: list[Path]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TIDEGATE_MODEL_REPOSITORY": ",".join(map(str, repositories))}
    command = [sys.executable, "-m", "control_plane", "models", "build", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture
def repositories(tmp_path: Path) -> list[Path]:
    (tmp_path / "a" / "without_a_recipe").mkdir(parents=True)
    model_folder(tmp_path / "a", "tokenizer")
    variants_folder(tmp_path / "b", "encoder", fp32={}, int8={"cosine_p1": 0.5})
    return [tmp_path / "a", tmp_path / "b"]


def test_a_model_is_built_wherever_its_repository_is(repositories: list[Path]) -> None:
    ended = tidegate("tokenizer", "--force", repositories=repositories)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("tokenizer: forced\n")
    assert (repositories[0] / "tokenizer" / "1" / "model.bin").exists()


def test_only_the_variant_asked_for_is_built_and_the_benchmark_is_handed_on(repositories: list[Path], tmp_path: Path) -> None:
    sts = tmp_path / "sts.csv"
    sts.write_text("0.75")

    ended = tidegate("encoder", "--variant", "fp32", "--sts", sts, repositories=repositories)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert [path.name for path in (repositories[1] / "encoder" / "1").iterdir()] == ["fp32"]
    assert "spearman 0.75, fp32 0.8" in ended.stdout


def test_the_builds_failure_is_its_own(repositories: list[Path]) -> None:
    ended = tidegate("encoder", "--variant", "int8", repositories=repositories)

    assert ended.returncode == 1
    assert ended.stderr == (
        "error: encoder/int8: the cosine with fp32 at the worst percentile is 0.50000, below 0.99: nothing is published\n"
    )


@pytest.mark.parametrize("name", ["nowhere", "without_a_recipe", "../a/tokenizer"])
def test_a_model_without_a_recipe_is_one_line_with_those_that_have_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], repositories: list[Path], name: str
) -> None:
    monkeypatch.setenv("TIDEGATE_MODEL_REPOSITORY", ",".join(map(str, repositories)))
    monkeypatch.setattr(sys, "argv", ["tidegate", "models", "build", name])
    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 1
    looked_in = f"{repositories[0]}, {repositories[1]}"
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"error: no recipe for a model '{name}' in {looked_in}; there are: encoder, tokenizer\n")
