"""The build command: what it builds, when, and how it reports failures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from python_backends.export.__main__ import main
from tests.unit.python_backends.export.recipes import model_folder

Output = pytest.CaptureFixture[str]


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_a_stale_model_is_built_with_one_line_per_step(tmp_path: Path, capsys: Output) -> None:
    folder = model_folder(tmp_path)

    assert run(tmp_path) == 0

    assert re.fullmatch(r"m: not built yet\n  write the artefact \.\.\. \d\.\d s\n", capsys.readouterr().out)
    assert (folder / "1" / "model.bin").read_bytes() == b"artefact"
    assert json.loads((folder / "1" / "manifest.json").read_text())["agreement"] == {"against_reference": {"cosine_min": 0.99995}}
    assert sorted(path.name for path in folder.iterdir()) == ["1", "build.py"]


def test_what_is_up_to_date_is_neither_built_nor_talked_about(tmp_path: Path, capsys: Output) -> None:
    manifest = model_folder(tmp_path) / "1" / "manifest.json"
    run(tmp_path)
    before = (manifest.stat().st_mtime_ns, capsys.readouterr())

    assert run(tmp_path) == 0

    assert (manifest.stat().st_mtime_ns, capsys.readouterr().out) == (before[0], "")


def test_a_changed_recipe_is_run_again_and_says_why(tmp_path: Path, capsys: Output) -> None:
    model_folder(tmp_path)
    run(tmp_path)
    model_folder(tmp_path, weights="def")
    capsys.readouterr()

    assert run(tmp_path) == 0

    assert capsys.readouterr().out.startswith("m: changed: weights, source build.py\n")
    assert run(tmp_path) == 0
    assert capsys.readouterr().out == ""


def test_a_recipe_that_is_changed_while_it_runs_is_run_again(tmp_path: Path, capsys: Output) -> None:
    model_folder(tmp_path, then='Path(__file__).write_text(Path(__file__).read_text().replace("Path(__file__).write_text", "str"))')
    run(tmp_path)
    capsys.readouterr()

    assert run(tmp_path) == 0

    assert capsys.readouterr().out.startswith("m: changed: source build.py\n")


def test_a_damaged_artefact_is_built_again(tmp_path: Path, capsys: Output) -> None:
    artefact = model_folder(tmp_path) / "1" / "model.bin"
    run(tmp_path)
    artefact.write_bytes(b"damaged")

    assert run(tmp_path) == 0

    assert artefact.read_bytes() == b"artefact"
    assert "m: model.bin is not what was built" in capsys.readouterr().out


def test_force_builds_what_is_up_to_date(tmp_path: Path, capsys: Output) -> None:
    model_folder(tmp_path)
    run(tmp_path)

    assert run("--force", tmp_path) == 0

    assert "m: forced\n" in capsys.readouterr().out


def test_list_says_what_would_be_built_and_builds_nothing(tmp_path: Path, capsys: Output) -> None:
    run(model_folder(tmp_path, "built"))
    absent = model_folder(tmp_path, "unbuilt") / "1"
    capsys.readouterr()

    assert run("--list", tmp_path) == 0

    said = capsys.readouterr().out
    assert re.search(r"^built: up to date\n  model\.bin  0\.0 MB  sha256 [0-9a-f]{12}\n  against_reference: cosine_min 0\.99995\n", said)
    assert said.endswith("unbuilt: not built yet\n")
    assert not absent.exists()


@pytest.mark.parametrize(
    ("then", "sentence"),
    [
        pytest.param('raise BuildError("the cosine is 0.9")', "m: the cosine is 0.9", id="not-good-enough"),
        pytest.param('raise OSError(28, "No space left on device")', "m: No space left on device", id="disk-full"),
        pytest.param('raise OSError(13, "Permission denied", "/x")', "m: Permission denied: '/x'", id="no-permission"),
        pytest.param("import no_such_library", "m: No module named 'no_such_library': run `make models`", id="import"),
    ],
)
def test_a_build_that_fails_is_one_sentence_and_publishes_nothing(tmp_path: Path, capsys: Output, then: str, sentence: str) -> None:
    folder = model_folder(tmp_path, then=then)

    assert run(tmp_path) == 1

    assert capsys.readouterr().err == f"error: {sentence}\n"
    assert sorted(path.name for path in folder.iterdir()) == ["build.py"]


def test_a_build_that_fails_leaves_the_version_that_was_there(tmp_path: Path) -> None:
    artefact = model_folder(tmp_path) / "1" / "model.bin"
    run(tmp_path)
    model_folder(tmp_path, then='(directory / "model.bin").write_bytes(b"worse")\nraise BuildError("worse")')

    assert run(tmp_path) == 1

    assert artefact.read_bytes() == b"artefact"


def test_a_missing_library_stops_it_before_anything_is_written(tmp_path: Path, capsys: Output) -> None:
    folder = model_folder(tmp_path, libraries=("no-such-library",))

    assert run(folder) == 1

    assert capsys.readouterr().err == "error: m: no-such-library must be installed to build it: run `make models`\n"
    assert not (folder / "1").exists()


def test_an_interrupt_ends_it_as_shells_expect(tmp_path: Path, capsys: Output) -> None:
    folder = model_folder(tmp_path, then="raise KeyboardInterrupt")

    assert run(tmp_path) == 130

    assert capsys.readouterr().err == "error: m: interrupted, nothing is published\n"
    assert not (folder / "1").exists()


def test_a_path_without_recipes_is_one_sentence(tmp_path: Path, capsys: Output) -> None:
    assert run(tmp_path) == 1

    assert capsys.readouterr().err == f"error: no build.py in '{tmp_path}' or in a folder in it\n"
