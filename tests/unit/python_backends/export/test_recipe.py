"""Recipes: what they depend on, what they need, and the gate of a variant."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from python_backends.export.discovery import load_targets
from python_backends.export.recipe import BuildError, Calibration, Gate, Recipe
from python_backends.runtime.machine import this_machine
from tests.unit.python_backends.export.recipes import model_folder, variants_folder


def load_recipe(model_directory: Path) -> Recipe:
    (target,) = load_targets(model_directory)
    return target.recipe


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
    with pytest.raises(BuildError, match=r"no-such-library must be installed to build it: run `make models`"):
        recipe.require_libraries()


def test_installed_libraries_are_enough(tmp_path: Path) -> None:
    recipe = load_recipe(model_folder(tmp_path))

    recipe.require_libraries()

    assert recipe.libraries == ("numpy",), "it had one to look for"


def test_a_variant_depends_on_the_kind_of_machine_too(tmp_path: Path) -> None:
    inputs = load_recipe(variants_folder(tmp_path, fp32={})).inputs()

    assert inputs["machine"] == this_machine("cpu").kind


def test_a_variant_for_a_gpu_does_not_depend_on_there_being_none(tmp_path: Path) -> None:
    if this_machine("gpu").kind != "no NVIDIA GPU":
        pytest.skip("there is one")

    assert "machine" not in load_recipe(variants_folder(tmp_path, engine={"device": "gpu"})).inputs()


@pytest.fixture
def calibration(tmp_path: Path) -> Calibration:
    path = tmp_path / "calibration.txt"
    path.write_text("first\n\nsecond\nthird\n")
    return Calibration(path, 2)


def test_calibration_texts_are_the_first_that_are_not_empty(calibration: Calibration) -> None:
    assert calibration.read() == ["first", "second"]


def test_too_few_calibration_texts_are_an_error(calibration: Calibration) -> None:
    with pytest.raises(BuildError, match=r"calibration\.txt' has 3 texts of the 4 needed"):
        dataclasses.replace(calibration, texts=4).read()


def test_a_recipe_depends_on_its_calibration_texts(tmp_path: Path, calibration: Calibration) -> None:
    recipe = dataclasses.replace(load_recipe(model_folder(tmp_path)), calibration=calibration)

    assert recipe.inputs()["source calibration.txt"] == hashlib.sha256(calibration.source.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("cosine_p1", "relative_loss"), [pytest.param(0.99, 0.01, id="just"), pytest.param(1.0, -0.2, id="better-than-the-reference")]
)
def test_a_gate_is_met_at_its_limits(cosine_p1: float, relative_loss: float) -> None:
    measured = {"against_fp32": {"cosine_p1": cosine_p1}, "similarity": {"relative_loss": relative_loss}}

    assert Gate(0.99, 0.01).shortfall(measured) is None


@pytest.mark.parametrize(
    ("cosine_p1", "relative_loss", "sentence"),
    [
        pytest.param(0.98999, 0.0, r"the worst percentile is 0\.98999, below 0\.99", id="cosine"),
        pytest.param(1.0, 0.0101, r"it loses 1\.01% of the rank correlation, more than 1\.00%", id="loss"),
        pytest.param(math.nan, 0.0, "the worst percentile is nan", id="no-cosine"),
        pytest.param(1.0, math.nan, "it loses nan% of the rank correlation", id="no-loss"),
    ],
)
def test_a_gate_that_is_not_met_says_by_how_much(cosine_p1: float, relative_loss: float, sentence: str) -> None:
    measured = {"against_fp32": {"cosine_p1": cosine_p1}, "similarity": {"relative_loss": relative_loss}}

    assert re.search(sentence, Gate(0.99, 0.01).shortfall(measured) or "")
