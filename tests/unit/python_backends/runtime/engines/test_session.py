"""Sessions: finding the file, the native backend's keys as ONNX Runtime's options, and errors in this package's words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

from python_backends.runtime.engines.session import find_model_file, open_session, open_session_to_describe, run_function, session_options
from python_backends.runtime.errors import ConfigError, ExecutionError, RequestError
from tests.unit.python_backends import tiny_onnx
from tests.unit.python_backends.configs import config, parameters


def options(cpu_count: int = 4, **changes: Any) -> ort.SessionOptions:
    return session_options(config(**changes), cpu_count=cpu_count)


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    return tiny_onnx.save(tiny_onnx.bag_of_tokens(), tmp_path / "model.onnx")


def test_the_file_is_model_onnx_unless_the_configuration_says_otherwise(tmp_path: Path) -> None:
    default = tiny_onnx.save(tiny_onnx.scalar_product(), tmp_path / "model.onnx")
    named = tiny_onnx.save(tiny_onnx.scalar_product(), tmp_path / "other.onnx")

    assert find_model_file(tmp_path, "") == default
    assert find_model_file(tmp_path, "other.onnx") == named


def test_a_model_with_external_data_is_a_folder_with_a_model_onnx_in_it(tmp_path: Path) -> None:
    inner = tiny_onnx.save(tiny_onnx.scalar_product(), tmp_path / "model.onnx" / "model.onnx")

    assert find_model_file(tmp_path, "model.onnx") == inner


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"unable to find '{tmp_path}/big.onnx'"):
        find_model_file(tmp_path, "big.onnx")


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        pytest.param(0, ort.GraphOptimizationLevel.ORT_ENABLE_ALL, id="default"),
        pytest.param(-1, ort.GraphOptimizationLevel.ORT_ENABLE_BASIC, id="basic"),
        pytest.param(1, ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED, id="extended"),
        pytest.param(2, ort.GraphOptimizationLevel.ORT_DISABLE_ALL, id="none"),
    ],
)
def test_graph_level(level: int, expected: ort.GraphOptimizationLevel) -> None:
    assert options(optimization={"graph": {"level": level}}).graph_optimization_level == expected


def test_threads_default_to_the_instances_share_of_the_cpus() -> None:
    group = [{"count": 2, "gpus": []}]

    assert options(cpu_count=4).intra_op_num_threads == 4
    assert options(cpu_count=4, instance_group=group).intra_op_num_threads == 2
    assert options(cpu_count=4, instance_group=group, parameters=parameters(intra_op_thread_count="3")).intra_op_num_threads == 3


def test_zero_threads_mean_the_default_as_in_the_native_backend() -> None:
    assert options(cpu_count=4, parameters=parameters(intra_op_thread_count="0")).intra_op_num_threads == 4


@pytest.mark.parametrize(
    ("key", "text", "entry"),
    [
        ("session.intra_op.allow_spinning", "false", "0"),
        ("session.intra_op.allow_spinning", "True", "1"),
        ("session.force_spinning_stop", "1", "1"),
        ("session.intra_op_thread_affinities", "3;4", "3;4"),
    ],
)
def test_onnx_runtimes_own_keys_are_passed_on(key: str, text: str, entry: str) -> None:
    assert options(parameters=parameters(**{key: text})).get_session_config_entry(key) == entry


def test_execution_mode_and_threads_between_operators() -> None:
    assert options().execution_mode == ort.ExecutionMode.ORT_SEQUENTIAL

    parallel = options(parameters=parameters(execution_mode="1", inter_op_thread_count="5"))

    assert parallel.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert parallel.inter_op_num_threads == 5


def test_an_unknown_execution_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'execution_mode' must be 0 \(sequential\) or 1 \(parallel\), not 2"):
        options(parameters=parameters(execution_mode="2"))


def test_memory_switches_are_left_alone_unless_configured() -> None:
    untouched = ort.SessionOptions()
    switched = options(parameters=parameters(enable_mem_arena="0", enable_mem_pattern="false"))

    assert options().enable_cpu_mem_arena == untouched.enable_cpu_mem_arena
    assert options().enable_mem_pattern == untouched.enable_mem_pattern
    assert not switched.enable_cpu_mem_arena
    assert not switched.enable_mem_pattern


def test_a_cpu_session_runs(bag: Path) -> None:
    session = open_session(bag, config(), kind="CPU", device_id=0)

    (embedding,) = run_function(session, config())(["EMBEDDING"], {"INPUT_IDS": np.array([[1, 2]]), "ATTENTION_MASK": np.array([[1, 0]])})

    assert embedding.tolist() == [[3.0, 4.0, 5.0]]


def test_the_arena_shrinkage_of_a_run_is_passed_on(bag: Path) -> None:
    wrong = config(parameters=parameters(**{"memory.enable_memory_arena_shrinkage": "moon:0"}))
    session = open_session(bag, wrong, kind="CPU", device_id=0)

    # ONNX Runtime refuses a device that does not exist, which shows that it was told.
    with pytest.raises((RequestError, ExecutionError), match="moon"):
        run_function(session, wrong)(["EMBEDDING"], {"INPUT_IDS": np.array([[1]]), "ATTENTION_MASK": np.array([[1]])})


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"not an onnx file")

    with pytest.raises(ConfigError, match=f"model 'm': ONNX Runtime [0-9.]+ cannot load '{path}'"):
        open_session(path, config(), kind="CPU", device_id=0)


def test_a_model_of_an_unknown_opset_is_refused_without_the_runtimes_own_source(bag: Path, tmp_path: Path) -> None:
    path, link = tmp_path / "later.onnx", tmp_path / "linked.onnx"
    model = onnx.load(bag)
    model.opset_import[0].version = 99
    onnx.save(model, path)
    link.symlink_to(path)

    with pytest.raises(ConfigError) as refused:
        open_session(link, config(), kind="CPU", device_id=0)
    told = str(refused.value)
    assert told.startswith(f"model 'm': ONNX Runtime {ort.__version__} cannot load '{path}': ")
    assert "Opset 99" in told
    assert "onnxruntime_src" not in told
    assert "::" not in told


def test_a_missing_custom_operator_library_is_refused(bag: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot load .*no_such_ops\.so"):
        open_session(bag, config(model_operations={"op_library_filename": ["/no_such_ops.so"]}), kind="CPU", device_id=0)


def test_a_gpu_instance_needs_a_build_with_cuda(bag: Path) -> None:
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")

    with pytest.raises(ConfigError, match="model 'm' needs CUDAExecutionProvider"):
        open_session(bag, config(), kind="GPU", device_id=0)


def test_a_describing_session_knows_the_inputs(bag: Path) -> None:
    assert [arg.name for arg in open_session_to_describe(bag, config()).get_inputs()] == ["INPUT_IDS", "ATTENTION_MASK"]


def test_input_that_the_file_does_not_take_is_the_requests_fault(tmp_path: Path) -> None:
    path = tiny_onnx.save(tiny_onnx.identity(TensorProto.FLOAT, ["batch", 2]), tmp_path / "model.onnx")
    run = run_function(open_session(path, config(), kind="CPU", device_id=0), config())

    with pytest.raises(RequestError, match=r"onnx runtime error: .*Got invalid dimensions for input: X"):
        run(["Y"], {"X": np.zeros((1, 3), np.float32)})


def test_a_token_beyond_the_table_is_the_requests_fault(bag: Path) -> None:
    run = run_function(open_session(bag, config(), kind="CPU", device_id=0), config())

    with pytest.raises(RequestError, match="indices element out of data bounds"):
        run(["EMBEDDING"], {"INPUT_IDS": np.array([[50]]), "ATTENTION_MASK": np.array([[1]])})


def test_failing_inside_the_graph_is_the_models_fault(bag: Path) -> None:
    run = run_function(open_session(bag, config(), kind="CPU", device_id=0), config())

    with pytest.raises(ExecutionError, match=r"onnx runtime error: .*Mul"):
        run(["EMBEDDING"], {"INPUT_IDS": np.array([[1, 2]]), "ATTENTION_MASK": np.array([[1, 1, 1]])})
