from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.core.algorithms.closure import MAX_MODELS
from control_plane.core.errors import ModelLoadFailed, ModelNotFound
from control_plane.models.adapters import managed_repository
from control_plane.triton.adapters.model_config import composing_models
from tests.unit.models.adapters.repository_lab import Lab, ensemble_of


def test_an_ensemble_gets_its_version_folder_and_its_composing_models(lab: Lab) -> None:
    lab.add("tokenizer", "1/vocabulary.txt")
    lab.add("encoder", "1/model.onnx")
    lab.add_ensemble("embedding", "tokenizer", "encoder")
    lab.repository.place("embedding")
    assert lab.placed_models() == ["embedding", "encoder", "tokenizer"]
    assert [path for path in lab.placed() if path.startswith("embedding")] == ["embedding/1", "embedding/config.pbtxt"]


def test_an_ensemble_with_a_version_folder_keeps_its_own(lab: Lab) -> None:
    model = lab.add_ensemble("embedding")
    (model / "3").mkdir()
    lab.repository.place("embedding")
    assert lab.placed() == ["embedding/3", "embedding/config.pbtxt"]


def test_what_an_ensemble_needs_is_told_without_placing_anything(lab: Lab) -> None:
    lab.add_ensemble("outer", "inner", "a")
    lab.add_ensemble("inner", "b")
    for name in "ab":
        lab.add(name, "1/model.onnx")
    assert (lab.repository.ensemble_closure("outer"), lab.repository.ensemble_closure("a")) == (["b", "inner", "a", "outer"], ["a"])
    with pytest.raises(ModelNotFound):
        lab.repository.ensemble_closure("nowhere")
    assert not lab.state_dir.exists()


def test_composing_models_are_placed_transitively(lab: Lab) -> None:
    lab.add("leaf", "1/model.onnx")
    lab.add_ensemble("middle", "leaf")
    lab.add_ensemble("top", "middle", "leaf")
    lab.repository.place("top")
    assert lab.placed_models() == ["leaf", "middle", "top"]


@pytest.mark.parametrize("steps", [("itself",), ("other",)])
def test_ensembles_that_need_each_other_are_left_to_triton(lab: Lab, steps: tuple[str, ...]) -> None:
    lab.add_ensemble("itself", *steps)
    lab.add_ensemble("other", "itself")
    lab.repository.place("itself")
    assert "itself" in lab.placed_models()


def test_a_chain_of_ensembles_is_placed_up_to_a_bound_and_costs_nobody_else_anything(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(MAX_MODELS + 3):
        lab.add_ensemble(f"e{number}", *([f"e{number - 1}"] if number else []))
    lab.add("echo", "1/model.onnx")
    read = list[Path]()

    def counting(model: Path, config_name: str) -> list[str]:
        read.append(model)
        return composing_models(model, config_name)

    monkeypatch.setattr(managed_repository, "composing_models", counting)
    lab.repository.place_all()
    assert len(lab.placed_models()) == MAX_MODELS + 1
    assert len(read) == len(set(read))
    assert len(lab.repository.place(f"e{MAX_MODELS - 1}")) == MAX_MODELS
    with pytest.raises(ModelLoadFailed, match=f"the ensemble 'e{MAX_MODELS}' needs more than {MAX_MODELS} models"):
        lab.repository.place(f"e{MAX_MODELS}")


def test_composing_models_are_those_of_the_config_in_force(lab: Lab) -> None:
    lab.add("on_cpu", "1/model.onnx")
    lab.add("on_gpu", "1/model.plan")
    model = lab.add_ensemble("pipeline", "on_cpu")
    (model / "configs").mkdir()
    (model / "configs" / "gpu.pbtxt").write_text(ensemble_of("on_gpu"))
    lab.make(config_name="gpu").place("pipeline")
    assert lab.placed_models() == ["on_gpu", "pipeline"]
    assert "pipeline/configs/gpu.pbtxt" in lab.placed()


def test_a_missing_composing_model_is_named_with_who_needs_it_and_nothing_is_placed(lab: Lab) -> None:
    lab.add_ensemble("middle", "missing")
    lab.add_ensemble("top", "middle")
    with pytest.raises(ModelNotFound, match=r"no model 'missing', which the ensemble 'middle' needs, in .*/models, .*/ensembles"):
        lab.repository.place("top")
    assert not lab.state_dir.exists()


def test_place_all_reads_a_step_once_however_many_ensembles_need_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    step = lab.add("step", "1/model.onnx")
    for number in range(3):
        lab.add_ensemble(f"ensemble{number}", "step")
    looks = list[Path]()
    listed = Path.iterdir

    def counting(folder: Path) -> Iterator[Path]:
        looks.append(folder)
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", counting)
    lab.repository.place_all()
    assert lab.placed_models() == ["ensemble0", "ensemble1", "ensemble2", "step"]
    assert looks.count(step / "1") == 1
