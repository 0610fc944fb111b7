"""What is wrong with a model's folder, by file and line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from control_plane.core.errors import Conflict, InvalidRequest, ModelLoadFailed
from control_plane.models.adapters.skeletons import SKELETONS, write_skeleton
from control_plane.models.adapters.validation import models_in, validate_model

PROJECT = Path(__file__).parents[4]


def said(folder: Path) -> list[str]:
    """What is found of a model, with files by their paths in its repository."""
    return [str(each).replace(f"{folder.parent}/", "") for each in validate_model(folder, "")]


@pytest.fixture
def python(tmp_path: Path) -> Path:
    write_skeleton("m", "python", tmp_path)
    return tmp_path / "m"


def change(folder: Path, file: str, old: str, new: str) -> None:
    path = folder / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


@pytest.mark.parametrize("kind", SKELETONS)
def test_nothing_is_wrong_with_a_skeleton(tmp_path: Path, kind: str) -> None:
    write_skeleton("m", kind, tmp_path)
    for folder in models_in(tmp_path):
        assert said(folder) == []
    with pytest.raises(Conflict, match="is there already"):
        write_skeleton("m", kind, tmp_path)


def test_the_onnx_skeleton_is_a_model_that_runs(tmp_path: Path) -> None:
    onnxruntime, numpy = pytest.importorskip("onnxruntime"), pytest.importorskip("numpy")
    write_skeleton("m", "onnx", tmp_path)
    session = onnxruntime.InferenceSession(str(tmp_path / "m" / "1" / "model.onnx"), providers=["CPUExecutionProvider"])
    rows = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    assert (session.run(["OUTPUT"], {"INPUT": rows})[0] == rows).all()


@pytest.mark.parametrize("name", ["", "a/b", "..", "../up", "a b", "x" * 256])
def test_a_name_that_cannot_be_one_writes_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest):
        write_skeleton(name, "python", tmp_path / "repository")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        pytest.param("max_batch_size: 8", "max_batch_size 8", "m/config.pbtxt:3: this is no configuration of a model: ", id="syntax"),
        pytest.param("max_batch_size", "max_batch", "m/config.pbtxt:3: this is no configuration of a model: ", id="an unknown field"),
        pytest.param('"python"', '"python"\nname: "other"', "m/config.pbtxt:3: the configuration of ", id="another name"),
        pytest.param(" data_type: TYPE_FP32", "", "m/config.pbtxt:5: input 'INPUT' has no data_type, such as TYPE_FP32", id="no type"),
        pytest.param(" dims: [ 4 ]", "", "m/config.pbtxt:5: input 'INPUT' has no dims, such as [ 3 ]", id="no dims"),
        pytest.param("[ 4 ]", "[ 0 ]", "m/config.pbtxt:5: input 'INPUT': dims are sizes from 1 on, or -1 for any size", id="no size"),
        pytest.param(
            'output [ { name: "OUTPUT"',
            'output [ { name: "A" data_type: TYPE_BOOL dims: [ 1 ] },\n { name: "A"',
            "m/config.pbtxt:7: output 'A' is there twice",
            id="twice",
        ),
        pytest.param("max_batch_size: 8", "max_batch_size: -1", "m/config.pbtxt:3: max_batch_size must be 0", id="a negative batch"),
        pytest.param(
            "max_batch_size: 8",
            "dynamic_batching { }",
            "m/config.pbtxt:3: dynamic_batching needs a max_batch_size",
            id="no batch",
        ),
    ],
)
def test_of_a_configuration(python: Path, old: str, new: str, line: str) -> None:
    change(python, "config.pbtxt", old, new)
    found = said(python)
    assert [each for each in found if each.startswith(line)] == found[:1], found
    assert len(found) == 1


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("def execute(self", "def execute(self,,", "m/1/model.py:10: this is not Python: "),
        ("class TritonPythonModel", "class Model", "m/1/model.py: the python backend looks for a class TritonPythonModel"),
        ("def execute", "def run", "m/1/model.py:4: TritonPythonModel has no method execute(self, requests)"),
    ],
)
def test_of_python_code(python: Path, old: str, new: str, line: str) -> None:
    change(python, "1/model.py", old, new)
    found = said(python)
    assert len(found) == 1
    assert found[0].startswith(line)


@pytest.mark.parametrize(
    "code", ["from shared import TritonPythonModel", "class TritonPythonModel(Base): ...", "TritonPythonModel = make()"]
)
def test_code_that_gets_its_class_from_elsewhere_is_believed(python: Path, code: str) -> None:
    (python / "1" / "model.py").write_text(code)
    assert said(python) == []


def test_of_files_and_versions(python: Path) -> None:
    (python / "02").mkdir()
    (python / "0").mkdir()
    found = said(python)
    assert "m/02: version folders are numbers without leading zeros: call it 2" in found
    assert "m/0: versions are counted from 1 on: Triton passes 0 over" in found
    shutil.rmtree(python / "02")
    shutil.rmtree(python / "0")
    (python / "1" / "model.py").unlink()
    assert len(said(python)) == 1
    assert "model.py is missing" in said(python)[0]
    shutil.rmtree(python / "1")
    assert "has no version folder" in said(python)[0]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('"e_step"', '"gone"', "e/config.pbtxt:11: the step's model 'gone' is in none of "),
        ('key: "INPUT"', 'key: "IN"', "e/config.pbtxt:13: 'e_step' has no input 'IN'; it has: INPUT"),
        ('value: "INPUT"', 'value: "LOST"', "e/config.pbtxt:13: no step gives 'LOST', and it is no input of the ensemble"),
        ('value: "OUTPUT"', 'value: "ELSE"', "e/config.pbtxt:6: no step gives the output 'OUTPUT'"),
    ],
)
def test_of_an_ensembles_wiring(tmp_path: Path, old: str, new: str, line: str) -> None:
    write_skeleton("e", "ensemble", tmp_path)
    assert said(tmp_path / "e") == []
    change(tmp_path / "e", "config.pbtxt", old, new)
    found = said(tmp_path / "e")
    assert any(each.startswith(line) for each in found), found


def test_whatever_bytes_are_there_it_says_so_and_goes_on(python: Path) -> None:
    (python / "config.pbtxt").write_bytes(b"\xff\xfe\x00")
    assert len(said(python)) == 1
    (python / "config.pbtxt").write_text("input " * 20_000)
    assert len(said(python)) == 1


def test_the_models_of_this_repository_and_of_the_examples() -> None:
    repositories = [PROJECT / "model_repository", PROJECT / "ensembles", PROJECT / "tests" / "contract" / "models"]
    for repository in repositories:
        for folder in models_in(repository):
            wrong = [each for each in validate_model(folder, "", repositories=repositories) if "is missing" not in str(each)]
            assert not wrong, f"{folder}: {wrong}"  # artefacts are built, and may not be there


def test_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match="cannot be read"):
        models_in(tmp_path / "none")
