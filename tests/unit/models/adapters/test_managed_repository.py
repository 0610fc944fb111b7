from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event

import pytest

from control_plane.core.errors import ModelLoadFailed, ModelNotFound, StartupError
from control_plane.models.adapters.managed_repository import ManagedRepository
from tests.unit.models.adapters.repository_lab import Lab


def test_making_one_writes_nothing(lab: Lab) -> None:
    assert not lab.state_dir.exists()


def test_a_source_that_does_not_exist_is_named(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"--model-repository .*/nowhere is not a folder"):
        ManagedRepository([lab.models, tmp_path / "nowhere"], lab.state_dir, config_name="")


def test_names_are_what_looks_like_a_model_built_or_not(lab: Lab) -> None:
    lab.add("by_config")
    lab.add("by_version", "1/model.onnx", config=None)
    lab.add("by_recipe", "build.py", config=None)
    lab.add("by_custom_config", "configs/gpu.pbtxt", config=None)
    lab.add_ensemble("an_ensemble", "by_config")
    lab.add("notes", "README.md", config=None)
    lab.add(".hidden", "1/model.onnx")
    (lab.models / "file").touch()
    assert lab.repository.names() == ["an_ensemble", "by_config", "by_custom_config", "by_recipe", "by_version"]


def test_names_are_those_of_now(lab: Lab) -> None:
    assert lab.repository.names() == []
    lab.add("later")
    assert lab.repository.names() == ["later"]


def test_a_name_in_two_sources_is_refused_with_both(lab: Lab) -> None:
    first = lab.add("twice")
    second = lab.add("twice", source=lab.ensembles)
    with pytest.raises(StartupError, match=f"two models are called 'twice': {first} and {second}; rename one"):
        lab.repository.names()


def test_one_source_named_twice_is_one_source(lab: Lab) -> None:
    lab.add("echo")
    link = lab.models.with_name("link")
    link.symlink_to(lab.models)
    assert ManagedRepository([lab.models, link], lab.state_dir, config_name="").names() == ["echo"]


@pytest.mark.parametrize("name", ["my model", "ünicode", "model (copy)"])
def test_a_name_that_clients_could_not_use_is_refused(lab: Lab, name: str) -> None:
    lab.add(name)
    with pytest.raises(StartupError, match="cannot be a model's name"):
        lab.repository.names()


def test_a_model_is_placed_without_recipe_and_notes(lab: Lab) -> None:
    lab.add(
        "echo",
        "build.py",
        "helper.py",
        "manifest.json",
        "README.md",
        "samples.json",
        "samples/1.json",
        "texts/a.txt",
        "labels.txt",
        "1/model.onnx",
    )
    lab.repository.place("echo")
    assert lab.placed() == ["echo/1", "echo/1/model.onnx", "echo/config.pbtxt", "echo/labels.txt"]


def test_only_what_was_asked_for_is_placed(lab: Lab) -> None:
    lab.add("echo", "1/model.onnx")
    lab.add("other", "1/model.onnx")
    lab.repository.place("echo")
    assert lab.placed_models() == ["echo"]


def test_files_that_come_and_go_in_the_source_do_so_in_the_placed_model(lab: Lab) -> None:
    model = lab.add("echo", "1/model.onnx")
    lab.repository.place("echo")
    (model / "2").mkdir()
    (model / "2" / "model.onnx").touch()
    (model / "1" / "model.onnx").unlink()
    lab.repository.place("echo")
    assert lab.placed() == ["echo/1", "echo/2", "echo/2/model.onnx", "echo/config.pbtxt"]


def test_placing_again_changes_no_time(lab: Lab) -> None:
    lab.add("encoder", "1/model.py")
    lab.add_ensemble("pipeline", "encoder")
    lab.repository.place("pipeline")
    root = lab.state_dir / "triton/repository"
    before = {path: path.lstat().st_mtime_ns for path in root.rglob("*")}
    lab.repository.place("pipeline")
    lab.make().place_all()
    assert {path: path.lstat().st_mtime_ns for path in root.rglob("*")} == before


@pytest.mark.parametrize("name", ["nowhere", "", ".", "..", "../models/echo", ".hidden", "a b"])
def test_a_model_in_no_source_is_not_found_and_nothing_is_harmed(lab: Lab, name: str) -> None:
    lab.add("echo", "1/model.onnx")
    lab.repository.place("echo")
    (lab.models / ".hidden").mkdir()
    (lab.models / ".hidden" / "config.pbtxt").touch()
    with pytest.raises(ModelNotFound, match="no model '"):
        lab.repository.place(name)
    assert lab.placed_models() == ["echo"]
    assert (lab.models / "echo" / "1" / "model.onnx").exists()


def test_a_folder_that_is_no_model_is_told_what_makes_it_one(lab: Lab) -> None:
    (lab.models / "flat").mkdir(parents=True)
    (lab.models / "flat" / "model.onnx").touch()
    with pytest.raises(
        ModelNotFound, match=r"/flat is no model: put its files into a version's folder, such as .*/flat/1, or add a config"
    ):
        lab.repository.place("flat")


def test_a_model_that_is_not_built_says_what_to_run(lab: Lab) -> None:
    lab.add("encoder", "build.py")
    lab.add_ensemble("pipeline", "encoder")
    for name in ("encoder", "pipeline"):
        with pytest.raises(ModelLoadFailed, match="model 'encoder' is not built: run `make setup`"):
            lab.repository.place(name)


def test_a_build_that_is_going_on_does_not_count_as_built(lab: Lab) -> None:
    lab.add("encoder", "build.py", ".1.building/model.onnx")
    with pytest.raises(ModelLoadFailed, match="is not built"):
        lab.repository.place("encoder")


def test_a_config_that_cannot_be_parsed_is_named_with_its_line(lab: Lab) -> None:
    model = lab.add("broken", "1/model.onnx", config='backend: "python"\nnonsense: 1')
    with pytest.raises(ModelLoadFailed, match=f"^{model}/config.pbtxt:2:"):
        lab.repository.require_loadable("broken")


def test_a_model_whose_source_went_is_removed_when_it_is_asked_for(lab: Lab) -> None:
    model = lab.add("gone", "1/model.onnx")
    lab.repository.place("gone")
    model.rename(lab.models.with_name("elsewhere"))
    with pytest.raises(ModelNotFound):
        lab.repository.place("gone")
    assert lab.placed_models() == []


def test_place_all_places_what_it_can_warns_of_the_rest_and_removes_what_is_gone(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    gone = lab.add("gone", "1/model.onnx")
    lab.repository.place_all()
    gone.rename(lab.models.with_name("elsewhere"))
    (lab.state_dir / "triton/repository/stray").touch()
    lab.add("echo", "1/model.onnx")
    lab.add("not_built", "build.py")
    with caplog.at_level(logging.WARNING):
        lab.repository.place_all()
    assert lab.placed_models() == ["echo"]
    assert [record.getMessage() for record in caplog.records] == [
        "model cannot be placed: model 'not_built' is not built: run `make setup`"
    ]


def test_place_all_waits_for_one_that_was_given_up(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them at once would make and remove the same links."""
    lab.add("echo", "1/model.onnx")
    first_is_in, goes_on = Event(), Event()
    begun, listed = list[int](), Path.iterdir

    def slow(folder: Path) -> Iterator[Path]:
        if folder == lab.models:
            begun.append(1)
            first_is_in.set()
            assert goes_on.wait(30)
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", slow)
    with ThreadPoolExecutor(2) as threads:
        try:
            each = [threads.submit(lab.repository.place_all)]
            assert first_is_in.wait(30)
            each.append(threads.submit(lab.repository.place_all))
            assert not wait(each, 0.05).done
            assert len(begun) == 1
        finally:
            goes_on.set()
    for one in each:
        one.result()
    assert len(begun) == 2


def test_place_all_makes_the_root_even_when_there_is_nothing_to_place(lab: Lab) -> None:
    lab.repository.place_all()
    assert lab.placed_models() == []


def test_folders_that_went_or_cannot_be_written_are_named(lab: Lab) -> None:
    lab.state_dir.write_text("not a folder")
    with pytest.raises(StartupError, match=r"state/triton/repository cannot be written: .*Not a directory"):
        lab.repository.place_all()
    lab.ensembles.rmdir()
    with pytest.raises(StartupError, match=r"--model-repository .*/ensembles cannot be read: .*No such file"):
        lab.repository.names()


def test_place_all_refuses_what_names_refuses(lab: Lab) -> None:
    lab.add("twice", "1/model.onnx")
    lab.add("twice", "1/model.onnx", source=lab.ensembles)
    with pytest.raises(StartupError, match="two models are called"):
        lab.repository.place_all()


def test_one_that_may_not_be_read_says_so(place_of_nobody: Path) -> None:
    lab = Lab(place_of_nobody)
    closed = lab.add("b", "1/model.onnx")
    closed.chmod(0)
    for ask in (lab.repository.place, lab.repository.ensemble_closure, lab.repository.require_loadable):
        with pytest.raises(ModelLoadFailed, match=r"model 'b' cannot be read: .*Permission denied"):
            ask("b")
    closed.chmod(0o755)


def test_texts_are_a_recipes_only_where_there_is_one(lab: Lab) -> None:
    lab.add("somebodys", "1/model.onnx", "texts/a.txt")
    lab.repository.place("somebodys")
    assert "somebodys/texts/a.txt" in lab.placed()


def test_parameters_give_triton_a_configuration_of_its_own_and_leave_the_source(lab: Lab) -> None:
    source = lab.add("echo", "1/model.onnx")
    other = lab.add("other", "1/model.onnx")
    repository = ManagedRepository([lab.models], lab.state_dir, config_name="", parameters={"echo": {"variant": "fp32"}})

    repository.place_all()

    placed = repository.root / "echo/config.pbtxt"
    assert not placed.is_symlink()
    assert "fp32" in placed.read_text()
    assert 'backend: "onnxruntime"' in placed.read_text()
    assert (source / "config.pbtxt").read_text() == 'backend: "onnxruntime"'
    assert (repository.root / "other/config.pbtxt").readlink() == other / "config.pbtxt"


def test_a_configuration_with_parameters_is_written_only_when_it_differs(lab: Lab) -> None:
    """Triton would take a new modification time for a changed model."""
    source = lab.add("echo", "1/model.onnx")
    repository = ManagedRepository([lab.models], lab.state_dir, config_name="", parameters={"echo": {"variant": "fp32"}})
    repository.place("echo")
    placed = repository.root / "echo/config.pbtxt"
    os.utime(placed, ns=(1, 1))
    repository.place("echo")
    assert placed.stat().st_mtime_ns == 1
    (source / "config.pbtxt").write_text('backend: "changed"')
    repository.place("echo")
    assert 'backend: "changed"' in placed.read_text()
    assert placed.stat().st_mtime_ns > 1


def test_without_parameters_again_it_is_a_link_again(lab: Lab) -> None:
    lab.add("echo", "1/model.onnx")
    ManagedRepository([lab.models], lab.state_dir, config_name="", parameters={"echo": {"variant": "fp32"}}).place("echo")
    lab.repository.place("echo")
    assert (lab.repository.root / "echo/config.pbtxt").is_symlink()


def test_parameters_go_into_the_configuration_in_force(lab: Lab) -> None:
    lab.add("echo", "1/model.onnx", "configs/gpu.pbtxt")
    repository = ManagedRepository([lab.models], lab.state_dir, config_name="gpu", parameters={"echo": {"variant": "fp32"}})
    repository.place("echo")
    assert (repository.root / "echo/config.pbtxt").is_symlink()
    assert "fp32" in (repository.root / "echo/configs/gpu.pbtxt").read_text()


def test_parameters_of_no_model_are_refused_at_start(lab: Lab) -> None:
    with pytest.raises(StartupError, match=r"--model-parameter: no model ecko in .*models"):
        ManagedRepository([lab.models], lab.state_dir, config_name="", parameters={"ecko": {"variant": "fp32"}})
