"""Recipes: finding them, what they depend on, and what they need."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

import pytest

from python_backends.export.recipe import BuildError, find_model_directories, load_recipe
from tests.unit.python_backends.export.recipes import model_folder


def test_a_path_is_a_model_folder_or_holds_some(tmp_path: Path) -> None:
    second, first = model_folder(tmp_path, "b"), model_folder(tmp_path, "a")
    (tmp_path / "without_a_recipe").mkdir()

    assert find_model_directories([tmp_path]) == [first, second]
    assert find_model_directories([second, first]) == [second, first]


def test_a_path_without_a_recipe_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=f"no build.py in '{tmp_path}' or in a folder in it"):
        find_model_directories([tmp_path])


def test_inputs_are_everything_that_the_result_depends_on(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)

    assert load_recipe(folder).inputs() == {
        "weights": "abc",
        "setting opset": "17",
        "source build.py": hashlib.sha256((folder / "build.py").read_bytes()).hexdigest(),
        "library numpy": version("numpy"),
    }


def test_a_library_that_is_not_installed_is_no_input_but_is_required_to_build(tmp_path: Path) -> None:
    recipe = load_recipe(model_folder(tmp_path, libraries=("numpy", "no-such-library")))

    assert "library no-such-library" not in recipe.inputs()
    with pytest.raises(BuildError, match=r"no-such-library must be installed to build it: run `pip install -e \.\[build\]`"):
        recipe.require_libraries()


def test_installed_libraries_are_enough(tmp_path: Path) -> None:
    load_recipe(model_folder(tmp_path)).require_libraries()


def test_loading_a_recipe_leaves_nothing_in_the_models_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    folder = model_folder(tmp_path)

    load_recipe(folder)

    assert [path.name for path in folder.iterdir()] == ["build.py"]
