from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.errors import ModelLoadFailed
from control_plane.models.adapters.checks import require_loadable
from control_plane.protocols.protobuf_fields import varint

BACKENDS = frozenset(("python", "onnxruntime", "pytorch", "ours"))
_CODE = "class TritonPythonModel: ..."
_PYTHON, _ONNX = 'backend: "python"', 'backend: "onnxruntime"'
_LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"

Files = dict[str, str | bytes]


def message(*fields: tuple[int, bytes]) -> bytes:
    return b"".join(varint(number << 3 | 2) + varint(len(content)) + content for number, content in fields)


MODEL = b"\x08\x09" + message((2, b"exporter"), (7, b"graph" * 100), (8, b"\x10\x11"))


def write(folder: Path, config: str | None, files: Files) -> Path:
    model = folder / "m"
    model.mkdir()
    if config is not None:
        (model / "config.pbtxt").write_text(config)
    for path, content in files.items():
        (model / path).parent.mkdir(parents=True, exist_ok=True)
        (model / path).write_bytes(content.encode() if isinstance(content, str) else content)
    return model


@pytest.mark.parametrize(
    ("config", "files"),
    [
        pytest.param(_PYTHON, {"1/model.py": _CODE}, id="python"),
        pytest.param(_PYTHON, {"1/notes": "", "2/model.py": _CODE}, id="of two versions the latest is loaded"),
        pytest.param(f'{_PYTHON} default_model_filename: "main.py"', {"1/main.py": _CODE}, id="a file of another name"),
        pytest.param('backend: "ours"', {"1/whatever": "x"}, id="a backend that says itself what it loads"),
        pytest.param('backend: "own"', {"1/libtriton_own.so": "x"}, id="a backend that the model brings"),
        pytest.param('backend: "own" runtime: "somewhere"', {"1/x": "x"}, id="a backend that the configuration names"),
        pytest.param(_ONNX, {"1/model.onnx": MODEL}, id="ONNX"),
        pytest.param('platform: "onnxruntime_onnx"', {"1/model.onnx": MODEL}, id="ONNX by its platform"),
        pytest.param(None, {"1/model.onnx": MODEL}, id="ONNX without a configuration"),
        pytest.param(_ONNX, {"1/model.onnx/model.onnx": MODEL, "1/model.onnx/weights": "x"}, id="ONNX in several files"),
        pytest.param(f'{_ONNX} cc_model_filenames {{ key: "9.0" value: "h.onnx" }}', {"1/h.onnx": MODEL}, id="a file for each GPU"),
        pytest.param('backend: "pytorch" runtime: "model.py"', {"1/model.py": _CODE}, id="PyTorch by its Python runtime, without weights"),
        pytest.param('backend: "pytorch" platform: "torch_aoti"', {"1/model.pt2": "x"}, id="PyTorch, compiled ahead of time"),
        pytest.param('platform: "ensemble"', {}, id="an ensemble"),
        pytest.param("ensemble_scheduling { }", {}, id="an ensemble by its scheduling"),
        pytest.param(None, {"1/whatever": "x"}, id="nobody knows what"),
        pytest.param(f"{_PYTHON} version_policy {{ specific {{ versions: [ 1 ] }} }}", {"1/model.py": _CODE, "2/x": ""}, id="specific"),
        pytest.param(f"{_PYTHON} version_policy {{ latest {{ num_versions: 2 }} }}", {"1/x": "", "2/model.py": _CODE, "3/model.py": _CODE}),
    ],
)
def test_what_triton_could_load_passes(tmp_path: Path, config: str | None, files: Files) -> None:
    require_loadable(write(tmp_path, config, files), "", backends=BACKENDS)


@pytest.mark.parametrize(
    ("config", "files", "says"),
    [
        pytest.param(_PYTHON, {"1/weights": "x"}, r"model 'm' cannot be loaded: .*/m/1/model\.py is missing, which", id="no model.py"),
        pytest.param(_PYTHON, {"1/model.py": _CODE, "3/x": "x"}, r"m/3/model\.py is missing", id="none in the latest version"),
        pytest.param(f"{_PYTHON} version_policy {{ all {{ }} }}", {"1/x": "", "2/model.py": _CODE}, r"m/1/model\.py is missing", id="all"),
        pytest.param(
            f"{_PYTHON} version_policy {{ latest {{ num_versions: 2 }} }}",
            {"1/x": "", "2/model.py": _CODE},
            r"m/1/model\.py is missing",
            id="latest two",
        ),
        pytest.param(
            f"{_PYTHON} version_policy {{ specific {{ versions: [ 7 ] }} }}",
            {"1/model.py": _CODE, "2/model.py": _CODE},
            "the version_policy of model 'm' names version 7, and in .*/m there is 1, 2",
            id="a version that is not there",
        ),
        pytest.param(f'{_PYTHON} default_model_filename: "main.py"', {"1/model.py": _CODE}, r"main\.py is missing", id="another name"),
        pytest.param(_PYTHON, {"notes": "x"}, "has no version folder: what it is loaded from goes into .*/m/1", id="no version"),
        pytest.param(_PYTHON, {"v1/model.py": _CODE}, "has no version folder", id="a version that is no number"),
        pytest.param(f"{_PYTHON} input [", {"1/model.py": _CODE}, r"m/config\.pbtxt:1:\d+ : ", id="syntax of the configuration"),
        pytest.param(f"{_PYTHON} inptu [ ]", {"1/model.py": _CODE}, r"m/config\.pbtxt:1:19 : .*inptu", id="an unknown field"),
        pytest.param(f'{_PYTHON} name: "n"', {"1/model.py": _CODE}, "is for a model called 'n'; give that name to the folder", id="name"),
        pytest.param(
            'backend: "tensorrt"',
            {"1/model.plan": "x"},
            "needs the backend 'tensorrt', and this Triton has onnx.*, ours, py.*; attach a Triton that has it",
        ),
        pytest.param('platform: "tensorrt_plan"', {"1/model.plan": "x"}, "needs the backend 'tensorrt'", id="backend by its platform"),
        pytest.param('backend: "pytorch"', {"1/model.py": _CODE}, r"m/1/model\.pt is missing", id="PyTorch without its file"),
        pytest.param(_PYTHON, {"1/model.py": ""}, r"model\.py is empty", id="empty"),
        pytest.param(_PYTHON, {"1/model.py": _LFS}, r"model\.py is a Git LFS pointer .* run `git lfs pull`", id="an LFS pointer"),
        pytest.param(None, {"1/model.onnx": _LFS}, r"model\.onnx is a Git LFS pointer", id="an LFS pointer without a configuration"),
        pytest.param(_ONNX, {"1/model.onnx": "no ONNX at all"}, r"model\.onnx is no ONNX model", id="no ONNX"),
        pytest.param(_ONNX, {"1/model.onnx": MODEL[:-200]}, r"model\.onnx is cut short: \d+ bytes of it are missing", id="cut short"),
        pytest.param(_ONNX, {"1/model.onnx": message((2, b"exporter"))}, r"model\.onnx has no graph", id="no graph"),
        pytest.param(_ONNX, {"1/model.onnx/weights": "x"}, r"model\.onnx/model\.onnx is missing", id="several files but the model"),
    ],
)
def test_what_it_could_not_is_refused_with_what_would_be_right(tmp_path: Path, config: str | None, files: Files, says: str) -> None:
    with pytest.raises(ModelLoadFailed, match=says):
        require_loadable(write(tmp_path, config, files), "", backends=BACKENDS)


def test_where_nobody_knows_the_backends_any_may_be_there(tmp_path: Path) -> None:
    require_loadable(write(tmp_path, 'backend: "tensorrt"', {"1/model.plan": "x"}), "", backends=None)


def test_the_configuration_in_force_counts(tmp_path: Path) -> None:
    model = write(tmp_path, _PYTHON, {"1/model.onnx": MODEL, "configs/gpu.pbtxt": _ONNX})
    require_loadable(model, "gpu", backends=BACKENDS)
    with pytest.raises(ModelLoadFailed, match=r"model\.py is missing"):
        require_loadable(model, "", backends=BACKENDS)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("/nowhere/model.py", r"model\.py is missing \(it is a link to /nowhere/model\.py\)"),
        ("model.py", r"model\.py cannot be read: Too many levels of symbolic links"),
    ],
)
def test_a_link_that_leads_nowhere_is_told(tmp_path: Path, target: str, says: str) -> None:
    model = write(tmp_path, _PYTHON, {"1/x": ""})
    (model / "1/model.py").symlink_to(target)
    with pytest.raises(ModelLoadFailed, match=says):
        require_loadable(model, "", backends=BACKENDS)


@pytest.mark.parametrize("path", ["config.pbtxt", "1", "1/model.py"])
def test_what_this_user_may_not_read_is_named(place_of_nobody: Path, path: str) -> None:
    model = write(place_of_nobody, _PYTHON, {"1/model.py": _CODE})
    (model / path).chmod(0)
    with pytest.raises(ModelLoadFailed, match=f"{path}.*cannot be read: .*[Pp]ermission denied"):
        require_loadable(model, "", backends=BACKENDS)
    (model / path).chmod(0o755)


@given(st.binary(max_size=300))
def test_whatever_stands_in_an_onnx_file_passes_or_is_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    model = write(tmp_path_factory.mktemp("any"), _ONNX, {"1/model.onnx": content})
    with suppress(ModelLoadFailed):
        require_loadable(model, "", backends=BACKENDS)
