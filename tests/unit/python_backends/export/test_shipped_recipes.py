"""The project's own recipes: what they promise fits those who serve, and asking them costs no heavy library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from python_backends.export.discovery import Target, find_model_directories, load_targets
from python_backends.export.recipe import AUTO, Gate
from python_backends.runtime.machine import computes_bfloat16, gpu_name
from python_backends.runtime.variants.variant import RUNTIMES
from python_backends.runtime.variants.variant_choice import REFERENCE

PROJECT = Path(__file__).resolve().parents[4]
TARGETS = [target for folder in find_model_directories([PROJECT / "model_repository"]) for target in load_targets(folder)]
VARIANTS = [target for target in TARGETS if target.variant]


def labels(target: Target) -> str:
    return target.label


def test_the_encoder_has_the_reference_and_what_is_faster() -> None:
    assert {target.label for target in VARIANTS} >= {f"text_encoder/{name}" for name in (REFERENCE, "int8", "bf16", "compiled", "tensorrt")}


def test_of_the_encoders_variants_those_that_are_served_by_name_only_are_left_to_whoever_names_them() -> None:
    on_demand = {target.variant for target in VARIANTS if target.recipe.on_demand and target.label.startswith("text_encoder/")}
    assert on_demand == ({"pruned"} if computes_bfloat16() else {"pruned", "bf16"})


@pytest.mark.parametrize("target", TARGETS, ids=labels)
def test_everything_that_a_recipe_depends_on_is_there_and_counted(target: Target) -> None:
    inputs = target.recipe.inputs()

    assert {f"source {path.name}" for path in target.recipe.sources} <= inputs.keys()
    # Two sources of one name would hide each other.
    assert len({path.name for path in target.recipe.sources}) == len(target.recipe.sources)
    assert inputs["source build.py"]


@pytest.mark.parametrize("target", VARIANTS, ids=labels)
def test_every_variant_is_one_that_runtimes_can_serve(target: Target) -> None:
    serving = target.recipe.serving

    assert serving is not None
    assert serving.runtime in RUNTIMES
    assert serving.device in {"cpu", "gpu"}


@pytest.mark.parametrize("target", VARIANTS, ids=labels)
def test_no_gate_is_weaker_than_what_is_served_by_default_but_that_of_the_pruned(target: Target) -> None:
    serving = target.recipe.serving

    assert serving is not None
    if not isinstance(serving.gate, Gate):
        assert serving.gate == serving.auto or target.variant == REFERENCE
        return
    assert (serving.gate.cosine_p1_at_least >= AUTO.cosine_p1_at_least) == (target.variant != "pruned")
    assert serving.gate.spearman_loss_at_most <= AUTO.spearman_loss_at_most


@pytest.mark.parametrize("target", [target for target in VARIANTS if target.recipe.calibration], ids=labels)
def test_there_are_as_many_calibration_texts_as_a_recipe_takes(target: Target) -> None:
    calibration = target.recipe.calibration

    assert calibration is not None
    assert len(calibration.read()) == calibration.texts


@pytest.mark.skipif(gpu_name() is not None, reason="there is a GPU here")
@pytest.mark.parametrize("target", VARIANTS, ids=labels)
def test_variants_for_a_gpu_say_that_they_need_one(target: Target) -> None:
    serving = target.recipe.serving

    assert serving is not None
    needs = serving.needs()
    if serving.device == "gpu":
        assert needs is not None
        assert needs.startswith("it needs an NVIDIA GPU")
    else:
        assert "NVIDIA" not in (needs or "")


def test_asking_what_is_stale_imports_no_heavy_library() -> None:
    script = """
import sys
from pathlib import Path
from python_backends.export.__main__ import main
assert main(["--list", "model_repository"]) == 0
print(sorted({"torch", "transformers", "onnx", "onnxruntime", "tensorrt"} & set(sys.modules)))
"""
    ended = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False)

    assert (ended.stderr, ended.stdout.splitlines()[-1]) == ("", "[]")
