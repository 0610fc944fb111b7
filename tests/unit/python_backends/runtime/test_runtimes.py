"""One contract for every runtime: the same tensors in, the same tensors out, whatever computes them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from python_backends.export.variants.torch_program import export_program
from python_backends.runtime.errors import ConfigError, RequestError
from python_backends.runtime.model_config import ModelConfig
from python_backends.runtime.runtimes import Runtime, open_runtime
from python_backends.runtime.signature import Signature, TensorSignature, check_signature
from python_backends.runtime.variants.variant import RUNTIMES
from python_backends.runtime.variants.variant_choice import Variant
from tests.unit.python_backends import tiny_encoder
from tests.unit.python_backends.configs import config, parameters, tensor
from tests.unit.python_backends.tiny_encoder import HIDDEN, LONGEST, VOCABULARY, NumpyEncoder, texts

SHAPES = [(1, 1), (1, 7), (2, 1), (3, 16), (8, 33), (1, LONGEST)]
SHAPES_COMPILED = [(2, 7), (3, 16), (8, 33)]
"""PyTorch compiles anew, for seconds, where there is one row or one position: no test here asks for that of all cases."""

NEEDS_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU, or a CPU build of PyTorch")]
NEEDS_COMPILER = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler g++"),
    pytest.mark.timeout(180),
    # PyTorch's own, on importing its compiler.
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning"),
]


@dataclass(frozen=True)
class Case:
    """A way to run the tiny encoder, and how far from double precision it may be."""

    runtime: str
    tolerance: float
    precision: str = "fp32"
    mode: str = "eager"
    kind: str = "CPU"


CASES = [
    pytest.param(Case("onnxruntime", 1e-5), id="onnxruntime"),
    pytest.param(Case("torch", 1e-5), id="torch-fp32"),
    pytest.param(Case("torch", 0.05, "bf16"), id="torch-bf16"),
    pytest.param(Case("torch", 1e-5, mode="compiled"), id="torch-compiled", marks=NEEDS_COMPILER),
    pytest.param(Case("torch", 1e-3, kind="GPU"), id="torch-gpu", marks=NEEDS_GPU),
    pytest.param(Case("torch", 0.05, "bf16", "cuda_graphs", "GPU"), id="torch-cuda-graphs", marks=NEEDS_GPU),
    pytest.param(Case("torch", 0.05, "bf16", "compiled_cuda_graphs", "GPU"), id="torch-compiled-cuda-graphs", marks=NEEDS_GPU),
]


def model_config(**changes: Any) -> ModelConfig:
    """The tiny encoder's, complete."""
    inputs = [tensor(name, "TYPE_INT64", [-1]) for name in ("INPUT_IDS", "ATTENTION_MASK")]
    return config(max_batch_size=8, input=inputs, output=[tensor("EMBEDDING", dims=[HIDDEN])], **changes)


@pytest.fixture(scope="module", autouse=True)
def as_many_threads_as_before() -> Iterator[None]:
    """The torch runtime sets them for the process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Path]:
    """The tiny encoder's file for a case; what PyTorch has exported, for seconds, is not exported again."""
    encoder = tiny_encoder.encoder()

    @cache
    def export(runtime: str, precision: str) -> Path:
        directory = tmp_path_factory.mktemp(runtime)
        if runtime == "torch":
            return export_program(encoder, directory, precision=precision)
        path = directory / "model.onnx"
        path.write_bytes(tiny_encoder.onnx_of(encoder))
        return path

    return lambda case: export(case.runtime, case.precision)


@pytest.fixture(scope="module")
def reference() -> NumpyEncoder:
    return NumpyEncoder(tiny_encoder.encoder())


@pytest.fixture(scope="module", params=CASES)
def opened(request: pytest.FixtureRequest, artefact: Callable[[Case], Path]) -> Iterator[tuple[Case, Runtime]]:
    case: Case = request.param
    path = artefact(case)
    variant = Variant("tiny", path.parent, path, case.runtime, case.kind.lower(), None)
    modes = model_config(parameters=parameters(torch_mode=case.mode))
    runtime = open_runtime(variant, modes, kind=case.kind, device_id=0, threads=1)
    yield case, runtime
    runtime.close()


@pytest.fixture
def case(opened: tuple[Case, Runtime]) -> Case:
    return opened[0]


@pytest.fixture
def runtime(opened: tuple[Case, Runtime]) -> Runtime:
    return opened[1]


def test_it_computes_what_numpy_computes(case: Case, runtime: Runtime, reference: NumpyEncoder) -> None:
    for batch, length in SHAPES if case.mode == "eager" else SHAPES_COMPILED:
        inputs = texts(batch, length)

        (embedding,) = runtime.run(["EMBEDDING"], inputs)

        assert embedding.shape == (batch, HIDDEN)
        assert embedding.dtype == np.float32
        np.testing.assert_allclose(embedding, reference(inputs), atol=case.tolerance)


def test_rows_and_positions_of_padding_change_nothing(case: Case, runtime: Runtime) -> None:
    inputs = texts(2, 9)
    padded = {name: np.pad(array, ((0, 3), (0, 5))) for name, array in inputs.items()}

    (alone,), (padded_out,) = runtime.run(["EMBEDDING"], inputs), runtime.run(["EMBEDDING"], padded)

    np.testing.assert_allclose(padded_out[:2], alone, atol=case.tolerance)


def test_the_outputs_are_the_callers_own(runtime: Runtime) -> None:
    (first,) = runtime.run(["EMBEDDING"], texts(2, 5))
    before = first.copy()

    runtime.run(["EMBEDDING"], texts(2, 5, seed=1))

    np.testing.assert_array_equal(first, before)


def test_arrays_that_are_read_only_or_not_contiguous_are_taken(case: Case, runtime: Runtime, reference: NumpyEncoder) -> None:
    inputs = texts(3, 8)
    strange = {name: np.asfortranarray(array) for name, array in inputs.items()}
    for array in strange.values():
        array.setflags(write=False)

    (embedding,) = runtime.run(["EMBEDDING"], strange)

    np.testing.assert_allclose(embedding, reference(inputs), atol=case.tolerance)


def test_several_threads_may_run_at_once(case: Case, runtime: Runtime, reference: NumpyEncoder) -> None:
    requests = [texts(2 + index % 3, 3 + index, seed=index) for index in range(24)]

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda inputs: runtime.run(["EMBEDDING"], inputs)[0], requests))

    for inputs, answer in zip(requests, answers, strict=True):
        np.testing.assert_allclose(answer, reference(inputs), atol=case.tolerance)


def test_no_outputs_may_be_asked_for_by_another_name(runtime: Runtime) -> None:
    with pytest.raises(RequestError, match="LOGITS"):
        runtime.run(["LOGITS"], texts(1, 3))


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"INPUT_IDS": np.zeros((1, 3), np.int64)}, id="an-input-missing"),
        pytest.param({**texts(1, 3), "TYPES": np.zeros((1, 3), np.int64)}, id="an-input-too-many"),
        pytest.param({**texts(1, 3), "ATTENTION_MASK": np.ones((1, 3), np.float32)}, id="data-type"),
        pytest.param({**texts(1, 3), "INPUT_IDS": np.zeros(3, np.int64)}, id="rank"),
        pytest.param({**texts(1, 3), "INPUT_IDS": np.full((1, 3), VOCABULARY)}, id="beyond-the-vocabulary"),
    ],
)
def test_wrong_inputs_are_the_requests_fault_and_the_next_request_is_answered(runtime: Runtime, wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        runtime.run(["EMBEDDING"], wrong)

    assert runtime.run(["EMBEDDING"], texts(2, 3))[0].shape == (2, HIDDEN)


def test_its_signature_guards_configurations(runtime: Runtime) -> None:
    assert runtime.signature == Signature(
        inputs=tuple(TensorSignature(name, "TYPE_INT64", (-1, -1)) for name in ("INPUT_IDS", "ATTENTION_MASK")),
        outputs=(TensorSignature("EMBEDDING", "TYPE_FP32", (-1, HIDDEN)),),
    )
    check_signature(model_config(), runtime.signature)
    with pytest.raises(ConfigError, match=r"output 'EMBEDDING': the configuration says the shape \[-1, 7\]"):
        check_signature(config(max_batch_size=8, input=_inputs(), output=[tensor("EMBEDDING", dims=[7])]), runtime.signature)


def _inputs() -> list[dict[str, Any]]:
    return [tensor(name, "TYPE_INT64", [-1]) for name in ("INPUT_IDS", "ATTENTION_MASK")]


def test_a_closed_runtime_runs_no_more(artefact: Callable[[Case], Path]) -> None:
    for name in ("onnxruntime", "torch"):
        path = artefact(Case(name, 0))
        runtime = open_runtime(Variant("", path.parent, path, name, "cpu", None), model_config(), kind="CPU", device_id=0, threads=1)
        runtime.close()

        with pytest.raises(AssertionError, match="closed"):
            runtime.run(["EMBEDDING"], texts(1, 3))


def test_an_unknown_runtime_is_refused(tmp_path: Path) -> None:
    variant = Variant("int8", tmp_path, tmp_path / "model.xml", "openvino", "cpu", None)

    with pytest.raises(ConfigError, match="model 'm': unknown runtime 'openvino', known are: onnxruntime, torch, tensorrt"):
        open_runtime(variant, model_config(), kind="CPU", device_id=0)


def test_threads_override_the_configuration(artefact: Callable[[Case], Path]) -> None:
    path = artefact(Case("torch", 0))
    configured = model_config(parameters=parameters(intra_op_thread_count="2"))
    variant = Variant("", path.parent, path, "torch", "cpu", None)

    open_runtime(variant, configured, kind="CPU", device_id=0)
    assert torch.get_num_threads() == 2
    open_runtime(variant, configured, kind="CPU", device_id=0, threads=1)
    assert torch.get_num_threads() == 1


def test_every_runtime_has_its_module() -> None:
    folder = Path(__file__).parents[4]

    assert all((folder / f"{module.replace('.', '/')}.py").is_file() for module in RUNTIMES.values())
