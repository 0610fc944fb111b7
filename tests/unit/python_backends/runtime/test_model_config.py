"""Reading Triton's model configuration: what is taken from it, its defaults, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from python_backends.runtime.errors import ConfigError
from python_backends.runtime.model_config import Accelerator, TensorConfig, parse_boolean
from tests.unit.python_backends.configs import config, parameters, tensor


def test_a_tensor_keeps_what_the_backends_use() -> None:
    parsed = config(input=[tensor("IDS", "TYPE_INT64", [-1], allow_ragged_batch=True)], output=[tensor("Y", dims=[2, 3])])

    assert parsed.inputs == (TensorConfig("IDS", "TYPE_INT64", (-1,), optional=False, allow_ragged_batch=True),)
    assert parsed.outputs == (TensorConfig("Y", "TYPE_FP32", (2, 3)),)


def test_reshape_replaces_dims_because_it_is_what_the_model_sees() -> None:
    parsed = config(input=[tensor("X", dims=[1], reshape={"shape": []}), tensor("Z", dims=[4], reshape={"shape": ["2", "2"]})])

    assert [tensor.dims for tensor in parsed.inputs] == [(), (2, 2)]


def test_an_empty_configuration_has_the_servers_defaults() -> None:
    parsed = config()

    assert parsed.name == "m"
    assert parsed.graph_level == 0
    assert parsed.instance_count == 1
    assert parsed.default_model_filename == "model.onnx"
    assert (parsed.gpu_accelerators, parsed.cpu_accelerators, parsed.op_library_filenames, parsed.control_inputs) == ((), (), (), ())
    assert not parsed.uses_dynamic_batching


def test_optimization_is_read_with_every_accelerator_in_order() -> None:
    parsed = config(
        optimization={
            "graph": {"level": -1},
            "execution_accelerators": {
                "gpu_execution_accelerator": [{"name": "tensorrt", "parameters": {"precision_mode": "FP16"}}, {"name": "cuda"}],
                "cpu_execution_accelerator": [{"name": "openvino", "parameters": {}}],
            },
        }
    )

    assert parsed.graph_level == -1
    assert parsed.gpu_accelerators == (Accelerator("tensorrt", {"precision_mode": "FP16"}), Accelerator("cuda", {}))
    assert parsed.cpu_accelerators == (Accelerator("openvino", {}),)


def test_schedulers_are_recognised() -> None:
    assert config(dynamic_batching={}).uses_dynamic_batching
    assert config(sequence_batching={"control_input": [{"name": "START"}, {"name": "READY"}]}).control_inputs == ("START", "READY")
    assert config(model_operations={"op_library_filename": ["ops.so"]}).op_library_filenames == ("ops.so",)


@pytest.mark.parametrize(
    ("groups", "count"),
    [
        pytest.param([], 1, id="none"),
        pytest.param([{"count": 3, "gpus": []}], 3, id="one-group"),
        pytest.param([{"count": 1, "gpus": []}, {"count": 2}], 3, id="two-groups"),
        pytest.param([{"count": 2, "gpus": [0, 1, 3]}], 6, id="count-is-per-device"),
    ],
)
def test_instances_are_counted_over_groups_and_devices(groups: list[dict[str, Any]], count: int) -> None:
    assert config(instance_group=groups).instance_count == count


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        pytest.param({"batch_input": [{"kind": "BATCH_ELEMENT_COUNT"}]}, "batch_input", id="batch_input"),
        pytest.param({"batch_output": [{"kind": "BATCH_SCATTER_WITH_INPUT_SHAPE"}]}, "batch_output", id="batch_output"),
        pytest.param({"sequence_batching": {"state": [{"input_name": "S"}]}}, "sequence_batching.state", id="implicit-state"),
    ],
)
def test_what_only_native_backends_can_do_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"model 'm' uses {named}, which"):
        config(**changes)


def test_integer_parameters() -> None:
    parsed = config(parameters=parameters(threads="4", wrong="four"))

    assert parsed.integer("threads", 1) == 4
    assert parsed.integer("absent", 7) == 7
    with pytest.raises(ConfigError, match="model 'm': parameter 'wrong' must be an integer, not 'four'"):
        parsed.integer("wrong", 1)


def test_boolean_parameters_tell_absent_from_false() -> None:
    parsed = config(parameters=parameters(yes="On", no="0", wrong="maybe"))

    assert parsed.boolean("yes") is True
    assert parsed.boolean("no") is False
    assert parsed.boolean("absent") is None
    with pytest.raises(ConfigError, match="model 'm': parameter 'wrong' must be true or false, not 'maybe'"):
        parsed.boolean("wrong")


@pytest.mark.parametrize("word", ["true", "TRUE", "on", "1"])
def test_true_is_spelt_as_triton_spells_it(word: str) -> None:
    assert parse_boolean(word, "it") is True


@pytest.mark.parametrize("word", ["yes", "", "2", " true"])
def test_other_spellings_of_a_boolean_are_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="it must be true or false"):
        parse_boolean(word, "it")
