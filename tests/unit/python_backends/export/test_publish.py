"""Publishing: a version directory is replaced as a whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from python_backends.export.publish import atomic_replace, build_lock, leftovers, remove_leftovers
from python_backends.export.recipe import BuildError


@pytest.fixture
def version_directory(tmp_path: Path) -> Path:
    return tmp_path / "1"


def old_version(version_directory: Path) -> None:
    version_directory.mkdir()
    (version_directory / "old").touch()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_first_version_appears_whole(version_directory: Path) -> None:
    with atomic_replace(version_directory.parent, version_directory) as staging:
        (staging / "new").touch()
        assert not version_directory.exists()

    assert names(version_directory) == ["new"]
    assert names(version_directory.parent) == ["1"]


def test_a_new_version_replaces_the_old_one_file_for_file(version_directory: Path) -> None:
    old_version(version_directory)

    with atomic_replace(version_directory.parent, version_directory) as staging:
        (staging / "new").touch()
        assert names(version_directory) == ["old"]

    assert names(version_directory) == ["new"]
    assert names(version_directory.parent) == ["1"]


@pytest.mark.parametrize("error", [BuildError("not good enough"), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_build_that_fails_leaves_what_was_there_and_nothing_else(version_directory: Path, error: BaseException) -> None:
    def build() -> None:
        with atomic_replace(version_directory.parent, version_directory) as staging:
            (staging / "half").touch()
            raise error

    old_version(version_directory)

    with pytest.raises(type(error)):
        build()

    assert names(version_directory) == ["old"]
    assert names(version_directory.parent) == ["1"]


def test_ended_between_the_renames_the_old_one_is_put_back(version_directory: Path) -> None:
    old_version(version_directory)

    with pytest.raises(FileNotFoundError), atomic_replace(version_directory.parent, version_directory) as staging:
        staging.rmdir()

    assert names(version_directory) == ["old"]
    assert names(version_directory.parent) == ["1"]


def test_a_killed_build_leaves_nothing_that_the_next_one_uses(version_directory: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
from python_backends.export.publish import leftovers, build_lock, remove_leftovers, atomic_replace
with atomic_replace(Path({str(version_directory.parent)!r}), Path({str(version_directory)!r})) as staging:
    (staging / "half").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", script], check=False, cwd=Path(__file__).parents[4])

    assert killed.returncode == -signal.SIGKILL
    assert names(version_directory.parent) == [".1.building"]
    with atomic_replace(version_directory.parent, version_directory) as staging:
        assert names(staging) == []
    assert names(version_directory.parent) == ["1"]


def test_a_variant_is_replaced_without_touching_its_neighbours(version_directory: Path) -> None:
    for variant in ("fp32", "int8"):
        with atomic_replace(version_directory.parent, version_directory / variant) as staging:
            (staging / variant).touch()
            # Where neither Triton nor who mirrors the folder looks.
            assert staging == version_directory.parent / f".1.{variant}.building"

    with atomic_replace(version_directory.parent, version_directory / "int8") as staging:
        (staging / "new").touch()

    assert (names(version_directory), names(version_directory.parent)) == (["fp32", "int8"], ["1"])
    assert (names(version_directory / "fp32"), names(version_directory / "int8")) == (["fp32"], ["new"])


def test_a_first_variant_that_fails_leaves_no_version_directory(version_directory: Path) -> None:
    with pytest.raises(BuildError), atomic_replace(version_directory.parent, version_directory / "int8"):
        raise BuildError("not good enough")

    assert names(version_directory.parent) == []


def test_two_builds_of_one_model_do_not_meet(tmp_path: Path) -> None:
    with build_lock(tmp_path), pytest.raises(BuildError, match="another process is building it now"), build_lock(tmp_path):
        pytest.fail("the second build began")


def test_a_build_that_has_ended_holds_nothing(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(2):
        with build_lock(tmp_path):
            pass

    assert len(os.listdir("/proc/self/fd")) == before


def built(version_directory: Path, *variants: str) -> None:
    for variant in variants:
        (version_directory / variant).mkdir(parents=True)
        (version_directory / variant / "model.onnx").touch()
        (version_directory / variant / "manifest.json").write_text("{}")


def without_variants(version_directory: Path) -> None:
    version_directory.mkdir(exist_ok=True)
    (version_directory / "model.onnx").touch()
    (version_directory / "manifest.json").write_text(json.dumps({"format_version": 1, "artefacts": {"model.onnx": {}, "lost.onnx": {}}}))


def test_what_no_recipe_makes_any_more_is_removed_and_nothing_of_others(version_directory: Path) -> None:
    built(version_directory, "fp32", "given_up")
    without_variants(version_directory)
    (version_directory / "somebodys_own").mkdir()
    (version_directory / "notes.txt").touch()

    remove_leftovers(leftovers(version_directory, ["fp32", "int8"]))

    assert names(version_directory) == ["fp32", "notes.txt", "somebodys_own"]
    assert leftovers(version_directory, ["fp32", "int8"]) == []


def test_the_form_without_variants_stays_until_a_variant_can_be_served(version_directory: Path) -> None:
    without_variants(version_directory)

    assert leftovers(version_directory, ["fp32"]) == []


def test_a_plain_file_that_was_not_built_stays(version_directory: Path) -> None:
    built(version_directory, "fp32")
    (version_directory / "model.onnx").touch()

    assert leftovers(version_directory, ["fp32"]) == []


@pytest.mark.parametrize("manifest", ["", "[]", "{}", '{"artefacts": 1}', '{"artefacts": {"../../x": {}}}'])
def test_a_manifest_that_cannot_be_read_or_names_other_folders_removes_nothing_but_itself(version_directory: Path, manifest: str) -> None:
    built(version_directory, "fp32")
    (version_directory.parent.parent / "x").touch()
    (version_directory / "manifest.json").write_text(manifest)

    assert {path.name for path in leftovers(version_directory, ["fp32"])} <= {"manifest.json"}


def test_nothing_built_has_no_leftovers(version_directory: Path) -> None:
    assert leftovers(version_directory, ["fp32"]) == []
