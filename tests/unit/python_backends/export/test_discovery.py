"""Finding recipes, and what each builds where."""

from __future__ import annotations

from pathlib import Path

import pytest

from python_backends.export.discovery import Target, find_model_directories, load_targets, only_variants
from python_backends.export.recipe import BuildError
from tests.unit.python_backends.export.recipes import model_folder, variants_folder


def test_a_path_is_a_model_folder_or_holds_some(tmp_path: Path) -> None:
    second, first = model_folder(tmp_path, "b"), model_folder(tmp_path, "a")
    (tmp_path / "without_a_recipe").mkdir()

    assert find_model_directories([tmp_path]) == [first, second]
    assert find_model_directories([second, first]) == [second, first]


def test_a_path_without_a_recipe_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=f"no build.py in '{tmp_path}' or in a folder in it"):
        find_model_directories([tmp_path])


def test_a_recipe_without_variants_builds_the_version_itself(tmp_path: Path) -> None:
    (target,) = load_targets(model_folder(tmp_path, "plain"))

    assert (target.label, target.directory) == ("plain", tmp_path / "plain" / "1")


def test_each_variant_is_a_target_with_a_folder_of_its_own(tmp_path: Path) -> None:
    targets = load_targets(variants_folder(tmp_path, "encoder", fp32={}, int8={}))

    assert [target.label for target in targets] == ["encoder/fp32", "encoder/int8"]
    assert targets[1].directory == tmp_path / "encoder" / "1" / "int8"
    assert [target.recipe.settings["variant"] for target in targets] == ["fp32", "int8"]


@pytest.fixture
def targets(tmp_path: Path) -> list[Target]:
    folders = [model_folder(tmp_path, "plain"), variants_folder(tmp_path, "a", fp32={}, int8={}), variants_folder(tmp_path, "b", fp32={})]
    return [target for folder in folders for target in load_targets(folder)]


@pytest.mark.parametrize(
    ("variants", "labels"),
    [
        pytest.param([], ["plain", "a/fp32", "a/int8", "b/fp32"], id="all"),
        pytest.param(["fp32"], ["a/fp32", "b/fp32"], id="one"),
        pytest.param(["int8", "fp32"], ["a/fp32", "a/int8", "b/fp32"], id="two"),
    ],
)
def test_variants_can_be_named(targets: list[Target], variants: list[str], labels: list[str]) -> None:
    assert [target.label for target in only_variants(targets, variants)] == labels


def test_a_variant_that_nobody_has_is_an_error_that_says_which_there_are(targets: list[Target]) -> None:
    with pytest.raises(BuildError, match="no variant 'int4': there are fp32, int8"):
        only_variants(targets, ["fp32", "int4"])


def test_a_model_without_variants_says_so(targets: list[Target]) -> None:
    with pytest.raises(BuildError, match="no variant 'fp32': there are none"):
        only_variants(targets[:1], ["fp32"])


def test_loading_a_recipe_leaves_nothing_in_the_models_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    folder = model_folder(tmp_path)

    load_targets(folder)

    assert [path.name for path in folder.iterdir()] == ["build.py"]
