"""The tensorrt runtime against a TensorRT on ordinary memory; a real one (marked gpu) is held to what NumPy computes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backends.export.variants import tensorrt_engine
from python_backends.export.variants.tensorrt_engine import Profile, build_engine
from python_backends.runtime.errors import ConfigError, ExecutionError, RequestError
from python_backends.runtime.interface import Interface, TensorSpec, write_interface
from python_backends.runtime.runtimes import Runtime, open_runtime
from python_backends.runtime.variants.variant_choice import Variant
from tests.unit.python_backends import fake_tensorrt, tiny_encoder
from tests.unit.python_backends.configs import config
from tests.unit.python_backends.fake_tensorrt import Cuda
from tests.unit.python_backends.tiny_encoder import NumpyEncoder, texts

INTERFACE = Interface(
    inputs=(
        TensorSpec("INPUT_IDS", "TYPE_INT64", ("batch", "length"), below=50),
        TensorSpec("ATTENTION_MASK", "TYPE_INT64", ("batch", "length")),
    ),
    outputs=(TensorSpec("EMBEDDING", "TYPE_FP32", ("batch", 2)),),
    maximum={"batch": 8, "length": 32},
)
# One for few short texts and one for many long ones.
PROFILES = [dict.fromkeys(fake_tensorrt.INPUTS, shapes) for shapes in ([[1, 1], [1, 8], [2, 16]], [[1, 1], [8, 32], [8, 32]])]


def plan(directory: Path, **changes: Any) -> Path:
    """An engine and its interface."""
    write_interface(INTERFACE, directory)
    path = directory / "model.plan"
    path.write_text(json.dumps({"version": fake_tensorrt.VERSION, "profiles": PROFILES, **changes}))
    return path


def opened(path: Path, kind: str = "GPU") -> Runtime:
    return open_runtime(Variant("tensorrt", path.parent, path, "tensorrt", "gpu", None), config(), kind=kind, device_id=0)


@pytest.fixture
def cuda() -> Iterator[Cuda]:
    with fake_tensorrt.installed() as cuda:
        yield cuda


def requests(batch: int, length: int, first: int = 1) -> dict[str, Any]:
    ids = np.arange(first, first + batch * length).reshape(batch, length) % 50
    return {"INPUT_IDS": ids, "ATTENTION_MASK": (ids % 3 > 0).astype(np.int64)}


def expected(inputs: dict[str, Any]) -> Any:
    ids, mask = inputs["INPUT_IDS"], inputs["ATTENTION_MASK"]
    return np.stack([(ids * mask).sum(axis=1), np.full(len(ids), ids.shape[1])], axis=1)


def profiles_used() -> list[int]:
    import tensorrt

    used: list[int] = tensorrt.engines[-1].profiles_used
    return used


@pytest.mark.parametrize(
    ("shape", "profile"),
    [
        pytest.param((1, 1), 0, id="smallest"),
        pytest.param((2, 16), 0, id="the-first-that-takes-it"),
        pytest.param((3, 1), 1, id="too-many-for-the-first"),
        pytest.param((1, 17), 1, id="too-long-for-the-first"),
        pytest.param((8, 32), 1, id="largest"),
    ],
)
@pytest.mark.usefixtures("cuda")
def test_a_request_runs_in_the_first_profile_that_takes_its_shape(tmp_path: Path, shape: tuple[int, int], profile: int) -> None:
    runtime = opened(plan(tmp_path))
    inputs = requests(*shape)

    (embedding,) = runtime.run(["EMBEDDING"], inputs)

    np.testing.assert_array_equal(embedding, expected(inputs))
    assert embedding.dtype == np.float32
    assert profiles_used() == [profile]


@pytest.mark.usefixtures("cuda")
def test_the_outputs_are_the_callers_own(tmp_path: Path) -> None:
    runtime = opened(plan(tmp_path))

    (first,) = runtime.run(["EMBEDDING"], requests(2, 4))
    runtime.run(["EMBEDDING"], requests(2, 4, first=20))

    np.testing.assert_array_equal(first, expected(requests(2, 4)))


@pytest.mark.usefixtures("cuda")
def test_threads_take_turns_and_each_selects_the_device(tmp_path: Path) -> None:
    runtime = opened(plan(tmp_path))
    everything = [requests(1 + index % 8, 1 + index % 32, first=index) for index in range(64)]

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda inputs: runtime.run(["EMBEDDING"], inputs)[0], everything))

    for inputs, answer in zip(everything, answers, strict=True):
        np.testing.assert_array_equal(answer, expected(inputs))


@pytest.mark.usefixtures("cuda")
def test_inputs_that_are_not_contiguous_are_taken(tmp_path: Path) -> None:
    inputs = {name: np.asfortranarray(array) for name, array in requests(3, 5).items()}

    np.testing.assert_array_equal(opened(plan(tmp_path)).run(["EMBEDDING"], inputs)[0], expected(inputs))


@pytest.mark.usefixtures("cuda")
def test_wrong_inputs_do_not_reach_the_engine(tmp_path: Path) -> None:
    runtime = opened(plan(tmp_path))

    for wrong in (requests(1, 33), {**requests(1, 3), "INPUT_IDS": np.full((1, 3), 50)}, {"INPUT_IDS": np.zeros((1, 3), np.int64)}):
        with pytest.raises(RequestError):
            runtime.run(["EMBEDDING"], wrong)
    assert profiles_used() == []


@pytest.mark.usefixtures("cuda")
def test_a_shape_between_the_profiles_is_the_requests_fault(tmp_path: Path) -> None:
    only_long = [{key: [[1, 8], [1, 16], [8, 32]] for key in fake_tensorrt.INPUTS}]

    with pytest.raises(RequestError, match=r"the engine was not built for inputs of the shapes \{'INPUT_IDS': \[1, 3\]"):
        opened(plan(tmp_path, profiles=only_long)).run(["EMBEDDING"], requests(1, 3))


def test_closing_gives_everything_back(tmp_path: Path, cuda: Cuda) -> None:
    runtime = opened(plan(tmp_path))
    assert len(cuda.memory) == 6

    runtime.close()

    assert (cuda.memory, cuda.streams) == ({}, set())


def test_buffers_hold_the_largest_profile_and_no_more(tmp_path: Path, cuda: Cuda) -> None:
    opened(plan(tmp_path))

    assert sorted(len(buffer) for _, buffer in cuda.memory.values()) == [64, 64, 2048, 2048, 2048, 2048]


@pytest.mark.parametrize("call", ["cudaMemcpyAsync", "cudaStreamSynchronize"])
def test_an_error_of_cuda_fails_the_request_with_its_words(tmp_path: Path, cuda: Cuda, call: str) -> None:
    runtime = opened(plan(tmp_path))
    cuda.failing = {call}

    with pytest.raises(ExecutionError, match="TensorRT: CUDA error 2: out of memory"):
        runtime.run(["EMBEDDING"], requests(1, 3))

    cuda.failing = set()
    np.testing.assert_array_equal(runtime.run(["EMBEDDING"], requests(1, 3))[0], expected(requests(1, 3)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"broken": True}, "TensorRT could not start, see the log above", id="does-not-start"),
        pytest.param({"width": 3}, r"TensorRT gives EMBEDDING the shape \[1, 3\], not \[1, 2\]", id="another-output-shape"),
    ],
)
@pytest.mark.usefixtures("cuda")
def test_an_engine_that_says_no_fails_the_request(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        opened(plan(tmp_path, **changes)).run(["EMBEDDING"], requests(1, 3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"version": "8.6.1"}, "TensorRT 10.3.0 cannot load .* on this GPU, see the log: build it again here", id="version"),
        pytest.param({"too_large": True}, "has not enough memory for an execution context", id="memory"),
        pytest.param({"output_type": "INT64"}, "the engine has the tensors .* its interface says .*: build it again", id="data-type"),
    ],
)
@pytest.mark.usefixtures("cuda")
def test_an_engine_that_cannot_be_used_here_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"model 'm'.*{message}"):
        opened(plan(tmp_path, **changes))


@pytest.mark.parametrize("call", ["cudaStreamCreate", "cudaMalloc", "cudaMallocHost"])
def test_a_device_that_is_full_fails_the_load(tmp_path: Path, cuda: Cuda, call: str) -> None:
    cuda.failing = {call}

    with pytest.raises(ConfigError, match=r"cannot be prepared: CUDA error 2: out of memory"):
        opened(plan(tmp_path))


@pytest.mark.usefixtures("cuda")
def test_it_needs_a_gpu_instance(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a TensorRT engine needs an instance on a GPU \(`kind: KIND_GPU`\)"):
        opened(plan(tmp_path), kind="CPU")


def test_it_needs_cuda_python(tmp_path: Path) -> None:
    with (
        fake_tensorrt.installed(with_cuda=False),
        pytest.raises(ConfigError, match=r"needs the Python package cuda-python \(12.6 or newer\) as well"),
    ):
        opened(plan(tmp_path))


@pytest.mark.gpu
@pytest.mark.skipif(tensorrt_engine.missing_for_gpu() is not None, reason=str(tensorrt_engine.missing_for_gpu()))
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("bf16", 0.05)])
def test_a_real_engine_computes_what_numpy_computes(tmp_path: Path, precision: str, tolerance: float) -> None:
    encoder = tiny_encoder.encoder()
    profiles = [Profile((1, 1), (1, 8), (2, 16)), Profile((1, 1), (8, 32), (8, tiny_encoder.LONGEST))]
    path = build_engine(tiny_encoder.onnx_of(encoder), tmp_path / "model.plan", precision=precision, profiles=profiles)
    runtime, reference = opened(path), NumpyEncoder(encoder)

    for shape in [(1, 1), (2, 16), (3, 5), (8, tiny_encoder.LONGEST)]:
        inputs = texts(*shape)
        np.testing.assert_allclose(runtime.run(["EMBEDDING"], inputs)[0], reference(inputs), atol=tolerance)
    runtime.close()
