from __future__ import annotations

from pathlib import Path

import pytest

from control_plane.triton.embedded.backend_directory import assemble_backends, assemble_imports, backend_names


@pytest.fixture
def python_backends(tmp_path: Path) -> Path:
    root = tmp_path / "python_backends"
    for backend in ("text_encoder", "onnxruntime"):
        (root / backend).mkdir(parents=True)
        (root / backend / "model.py").touch()
    (root / "runtime").mkdir()
    (root / "runtime" / "triton.py").touch()
    (root / "model.py").touch()
    return root


@pytest.fixture
def wheels_backend(tmp_path: Path) -> Path:
    backend = tmp_path / "wheel" / "python"
    backend.mkdir(parents=True)
    (backend / "libtriton_python.so").touch()
    return backend


def links(folder: Path) -> dict[str, Path]:
    assert all(path.is_symlink() for path in folder.iterdir())
    return {path.name: path.readlink() for path in folder.iterdir()}


def test_backends_are_the_wheels_and_each_folder_of_ours_with_a_model(tmp_path: Path, python_backends: Path, wheels_backend: Path) -> None:
    directory = tmp_path / "state" / "backends"
    assemble_backends(directory, python_backend=wheels_backend, python_backends=python_backends)
    assert links(directory) == {
        "python": wheels_backend,
        "text_encoder": python_backends / "text_encoder",
        "onnxruntime": python_backends / "onnxruntime",
    }


def test_their_names_are_those_of_the_folder(tmp_path: Path, python_backends: Path, wheels_backend: Path) -> None:
    assemble_backends(tmp_path / "backends", python_backend=wheels_backend, python_backends=python_backends)
    assert backend_names(python_backends) == {path.name for path in (tmp_path / "backends").iterdir()}


def test_a_backend_that_went_is_gone_at_the_next_start_and_its_source_is_not_touched(
    tmp_path: Path, python_backends: Path, wheels_backend: Path
) -> None:
    directory = tmp_path / "backends"
    assemble_backends(directory, python_backend=wheels_backend, python_backends=python_backends)
    (python_backends / "onnxruntime" / "model.py").rename(python_backends / "onnxruntime" / "gone.py")
    assemble_backends(directory, python_backend=wheels_backend, python_backends=python_backends)
    assert sorted(links(directory)) == ["python", "text_encoder"]
    assert (wheels_backend / "libtriton_python.so").exists()
    assert (python_backends / "onnxruntime" / "gone.py").exists()


def test_no_backends_of_ours_is_no_error(tmp_path: Path, wheels_backend: Path) -> None:
    assemble_backends(tmp_path / "backends", python_backend=wheels_backend, python_backends=tmp_path / "none")
    assert sorted(links(tmp_path / "backends")) == ["python"]


def test_stubs_can_import_the_package_and_nothing_beside_it(tmp_path: Path, python_backends: Path) -> None:
    imports = tmp_path / "imports"
    imports.mkdir()
    (imports / "stale").touch()
    assemble_imports(imports, python_backends)
    assert links(imports) == {"python_backends": python_backends}


def test_an_own_tritons_backends_are_there_too_and_come_before_ours(tmp_path: Path, python_backends: Path) -> None:
    theirs = tmp_path / "opt/tritonserver/backends"
    for name in ("python", "onnxruntime", "tensorrt"):
        (theirs / name).mkdir(parents=True)
    (theirs / "README").touch()
    directory = tmp_path / "state/backends"
    assemble_backends(directory, python_backend=theirs / "python", python_backends=python_backends, others=theirs)
    found = links(directory)
    assert (found["tensorrt"], found["python"]) == (theirs / "tensorrt", theirs / "python")
    assert found["onnxruntime"] == theirs / "onnxruntime", "which computes on the GPU"
    assert found["text_encoder"] == python_backends / "text_encoder"
    assert found.keys() == backend_names(python_backends, theirs)
