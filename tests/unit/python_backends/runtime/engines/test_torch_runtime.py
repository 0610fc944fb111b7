"""The torch runtime's own: modes, what they need, and what a broken file is told. What it computes is in test_runtimes.py."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from python_backends.export.variants.torch_program import export_program
from python_backends.runtime.engines.torch_runtime import DEFAULT_MODES, MODES, TorchRuntime, on_device, open_model, pad_ones_to_two
from python_backends.runtime.errors import ConfigError, ExecutionError
from python_backends.runtime.execution import Array
from python_backends.runtime.interface import Interface, TensorSpec
from tests.unit.python_backends import tiny_encoder
from tests.unit.python_backends.configs import config, parameters
from tests.unit.python_backends.tiny_encoder import texts

CPU = torch.device("cpu")
INTERFACE = Interface(
    inputs=(TensorSpec("X", "TYPE_INT64", ("batch", "length")),),
    outputs=(TensorSpec("Y", "TYPE_INT64", ("batch", "length")),),
)


@pytest.fixture(autouse=True)
def as_many_threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_program(tiny_encoder.encoder(), tmp_path_factory.mktemp("fp32"), precision="fp32")


@pytest.fixture(scope="module")
def recorded_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whose recipe has chosen a mode."""
    directory = tmp_path_factory.mktemp("compiled")
    return export_program(tiny_encoder.encoder(), directory, precision="bf16", mode="compiled_cuda_graphs")


def open_in_mode(path: Path, mode: str | None, kind: str = "CPU") -> TorchRuntime:
    values = {} if mode is None else {"torch_mode": mode}
    return open_model(path, config(parameters=parameters(intra_op_thread_count="1", **values)), kind=kind, device_id=0)


def test_each_device_has_a_default_mode_that_exists() -> None:
    assert set(DEFAULT_MODES.values()) <= set(MODES)


def test_a_cpu_runs_eagerly_unless_told_otherwise(program: Path) -> None:
    assert open_in_mode(program, None).run(["EMBEDDING"], texts(1, 3))[0].shape == (1, tiny_encoder.HIDDEN)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        pytest.param("fast", "model 'm': unknown torch_mode 'fast', known are: eager, compiled, cuda_graphs, compiled_cuda", id="unknown"),
        pytest.param("cuda_graphs", r"torch_mode 'cuda_graphs' needs an instance on a GPU \(`kind: KIND_GPU`\)", id="needs-a-gpu"),
    ],
)
def test_modes_that_cannot_be_are_refused(program: Path, mode: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_in_mode(program, mode)


def test_the_recipes_mode_counts_where_the_configuration_names_none(recorded_program: Path) -> None:
    with pytest.raises(ConfigError, match="torch_mode 'compiled_cuda_graphs' needs an instance on a GPU"):
        open_in_mode(recorded_program, None)

    assert open_in_mode(recorded_program, "eager").run(["EMBEDDING"], texts(1, 3))[0].shape == (1, tiny_encoder.HIDDEN)


def test_compiling_on_a_cpu_needs_a_compiler(program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("g++") is None

    with pytest.raises(
        ConfigError, match=r"torch_mode 'compiled' needs the C\+\+ compiler g\+\+ on this machine: install it or use 'eager'"
    ):
        open_in_mode(program, "compiled")


def test_a_gpu_instance_needs_a_gpu(program: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")

    with pytest.raises(ConfigError, match=r"model 'm' needs an NVIDIA GPU and a CUDA build of PyTorch \(this is "):
        open_in_mode(program, None, kind="GPU")


def test_a_file_that_is_no_program_is_refused(program: Path, tmp_path: Path) -> None:
    shutil.copy(program.with_name("interface.json"), tmp_path)
    path = tmp_path / "model.pt2"
    path.write_bytes(b"not a program")

    with pytest.raises(ConfigError, match=f"model 'm': PyTorch .* cannot load '{path}'"):
        open_in_mode(path, None)


def test_a_program_without_its_interface_is_refused(program: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"interface\.json' does not describe a model"):
        open_in_mode(Path(shutil.copy(program, tmp_path)), None)


def test_the_number_of_threads_holds_in_every_thread(program: Path) -> None:
    runtime = open_in_mode(program, None)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(runtime.run, ["EMBEDDING"], texts(2, 5)).result()
        assert threads.submit(torch.get_num_threads).result() == 1


def test_what_fails_inside_is_the_models_fault() -> None:
    def broken(arrays: object) -> list[Array]:
        raise RuntimeError("out of memory")

    with pytest.raises(ExecutionError, match="PyTorch error: out of memory"):
        TorchRuntime(broken, INTERFACE).run(["Y"], {"X": np.zeros((1, 1), np.int64)})


def test_no_gradients_are_kept() -> None:
    weight = torch.ones(1, requires_grad=True)
    seen: list[bool] = []

    def module(x: torch.Tensor) -> list[torch.Tensor]:
        seen.append(torch.is_inference_mode_enabled())
        return [x * weight]

    (y,) = on_device(module, CPU)([np.ones((1, 2))])

    assert seen == [True]
    assert y.tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("shape", "computed"),
    [
        pytest.param((1, 1), (1, 2), id="both-one"),
        pytest.param((3, 1), (3, 2), id="length-one"),
        pytest.param((1, 2), (1, 2), id="a-batch-of-one-may-be"),
        pytest.param((3, 5), (3, 5), id="neither"),
    ],
)
def test_a_length_of_one_is_padded_for_the_compiler(shape: tuple[int, int], computed: tuple[int, int]) -> None:
    shapes: list[tuple[int, ...]] = []

    def double(arrays: object) -> list[Array]:
        (x,) = arrays  # type: ignore[misc, attr-defined]
        shapes.append(x.shape)
        return [2 * x]

    (y,) = pad_ones_to_two(double, INTERFACE)([np.full(shape, 3)])

    assert shapes == [computed]
    assert y.tolist() == np.full(shape, 6).tolist()
