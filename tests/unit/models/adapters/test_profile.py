from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest

from control_plane.host import gpu_probe
from control_plane.models.adapters.profile import NO_DEVICE, Profile, Tried, ask_libraries, choose_profile, with_profile
from control_plane.settings import TritonSettings, load_settings

NOTHING = {
    "onnxruntime": "this build has no CUDAExecutionProvider",
    "torch": "version 2.13.0+cpu finds no GPU",
    "tensorrt": "not installed",
}
PYTHON = (sys.executable, "-I", "-S", "-c")


def found(*working: str) -> Tried:
    return {**NOTHING, **dict.fromkeys(working, "")}


def variant(repository: Path, model: str, name: str, **manifest: str) -> None:
    folder = repository / model / "1" / name
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (repository / model / "configs").mkdir(exist_ok=True)
    (repository / model / "configs/gpu.pbtxt").touch()


@pytest.fixture
def device(tmp_path: Path) -> Path:
    (tmp_path / "nvidia0").touch()
    return tmp_path / "nvidia0"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def profile(repository: Path, device: Path, tried: Tried, **settings: object) -> Profile:
    return choose_profile(TritonSettings(model_repository=[repository], **settings), device=device, ask=lambda: tried)  # type: ignore[arg-type]


def test_without_a_device_nobody_is_asked(repository: Path, tmp_path: Path) -> None:
    def ask() -> Tried:
        raise AssertionError("it takes seconds")

    chosen = choose_profile(TritonSettings(model_repository=[repository]), device=tmp_path / "none", ask=ask)
    assert chosen == Profile("", NO_DEVICE)


def test_a_device_that_nothing_computes_on_is_left_alone(repository: Path, device: Path) -> None:
    """A GPU with README's CPU build of PyTorch: every model that asks for the GPU would fail to load."""
    chosen = profile(repository, device, NOTHING)
    assert chosen.name == ""
    assert (
        "onnxruntime: this build has no CUDAExecutionProvider; torch: version 2.13.0+cpu finds no GPU; tensorrt: not inst" in chosen.reason
    )


@pytest.mark.parametrize("library", NOTHING)
def test_one_library_that_computes_on_it_is_enough(repository: Path, device: Path, library: str) -> None:
    assert profile(repository, device, found(library)) == Profile("gpu", f"{library} can use the GPU")


@pytest.mark.parametrize(
    ("built", "working", "name"),
    [
        pytest.param([("fp32", "onnxruntime", "cpu")], ["torch"], "", id="none for a GPU"),
        pytest.param([("fp32", "onnxruntime", "cpu"), ("engine", "tensorrt", "gpu")], ["torch"], "", id="none for this library"),
        pytest.param([("fp32", "onnxruntime", "cpu"), ("compiled", "torch", "gpu")], ["torch"], "gpu", id="one for it"),
        pytest.param([("fp32", "onnxruntime", "cpu")], ["onnxruntime", "torch"], "gpu", id="onnxruntime runs the plain one there"),
        pytest.param([], ["torch"], "gpu", id="a model without variants may run on anything"),
    ],
)
def test_a_model_with_variants_needs_one_that_can_be_served(
    repository: Path, device: Path, built: list[tuple[str, str, str]], working: list[str], name: str
) -> None:
    for folder, runtime, kind in built:
        variant(repository, "encoder", folder, runtime=runtime, device=kind)
    chosen = profile(repository, device, found(*working))
    assert chosen.name == name
    assert name or "encoder has no variant for that: tidegate models build encoder" in chosen.reason


@pytest.mark.parametrize("working", [[], ["torch"]], ids=["nothing else does", "no variant for what else does"])
def test_nvidias_backends_compute_where_nothing_in_python_does(repository: Path, device: Path, tmp_path: Path, working: list[str]) -> None:
    variant(repository, "encoder", "fp32", runtime="onnxruntime", device="cpu")
    server = tmp_path / "tritonserver/bin/tritonserver"
    native = tmp_path / "tritonserver/backends/onnxruntime/libonnxruntime_providers_cuda.so"
    assert profile(repository, device, found(*working), tritonserver=server).name == "", "a build for CPUs only"
    native.parent.mkdir(parents=True)
    native.touch()
    assert profile(repository, device, found(*working), tritonserver=server) == Profile(
        "nvidia", f"the backend onnxruntime of {server} can use the GPU"
    )
    assert profile(repository, device, found("onnxruntime"), tritonserver=server).name == "gpu", "our backends batch better"
    assert profile(repository, device, found(*working)).name == "", "that of the wheel has no such backend"


def test_the_python_of_the_stubs_is_asked(repository: Path, device: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python3"
    python.write_text("""#!/bin/sh\necho '{"torch": ""}'\n""")
    python.chmod(0o755)
    monkeypatch.setattr("control_plane.models.adapters.profile.stub_python", lambda tritonserver: str(python))
    assert choose_profile(TritonSettings(model_repository=[repository]), device=device) == Profile("gpu", "torch can use the GPU")


def test_what_the_operator_says_counts(repository: Path, device: Path) -> None:
    assert profile(repository, device, NOTHING, model_config_name="gpu").name == "gpu"
    assert profile(repository, device, found("torch"), model_config_name="").name == ""


@pytest.mark.parametrize(
    ("chosen", "level", "says"),
    [
        pytest.param(Profile("gpu", "torch can use the GPU"), logging.INFO, "configs/gpu.pbtxt: torch can use the GPU", id="used"),
        pytest.param(Profile("", "nothing computes on it"), logging.WARNING, "on the CPU: nothing computes on it", id="not used"),
        pytest.param(Profile("", NO_DEVICE), None, "", id="none there"),
    ],
)
def test_it_is_decided_once_and_said(chosen: Profile, level: int | None, says: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    decided = with_profile(load_settings(), choose=lambda settings: chosen)
    assert decided.triton.model_config_name == chosen.name
    assert [record.levelno for record in caplog.records] == ([level] if level else [])
    assert says in caplog.text
    assert with_profile(decided, choose=lambda settings: Profile("never", "asked")) == decided


def test_of_a_triton_that_others_run_nothing_is_decided() -> None:
    attached = load_settings({"triton_url": "http://127.0.0.1:1"})
    assert with_profile(attached, choose=lambda settings: Profile("gpu", "")) is attached


@pytest.mark.timeout(180)  # it imports three heavy libraries
def test_the_probe_says_of_each_library_whether_it_computes_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # it needs nothing of ours
    tried = ask_libraries(timeout_s=150.0)
    assert {*tried} == {"onnxruntime", "torch", "tensorrt"}
    if not Path("/dev/nvidia0").exists():
        assert all(tried.values()), "nothing computes on a GPU that is not there"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        pytest.param([*PYTHON, "import os; os.kill(os.getpid(), 11)"], "it ended with status -11", id="killed by a broken driver"),
        pytest.param([*PYTHON, "print('hello')"], "it ended with status 0", id="no JSON"),
        pytest.param([*PYTHON, "import time; time.sleep(60)"], "timed out", id="no answer"),
        pytest.param(["/no/such/python"], "No such file", id="not to be run"),
    ],
)
def test_a_probe_that_fails_means_no_gpu_and_says_why(command: list[str], says: str) -> None:
    tried = ask_libraries(command, timeout_s=2.0)
    assert says in " ".join(tried.values())


def test_words_of_libraries_that_the_probe_passes_on_are_bounded() -> None:
    def fail() -> None:
        raise RuntimeError("x" * 10_000)

    assert len(gpu_probe._why_not(fail)) == 300
