"""Streamed models answer as whole ones, within their budget; what cannot be streamed is refused at load."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from python_backends.runtime.engines.session import open_model
from python_backends.runtime.errors import ConfigError, ExecutionError, RequestError
from python_backends.runtime.model_config import ModelConfig, parse_model_config
from python_backends.runtime.streaming.onnx_graph import read_graph
from python_backends.runtime.streaming.parts import MIB, make_plan
from python_backends.runtime.streaming.streamed import StreamedRuntime

_LAYERS, _WIDTH = 8, 256
_CONFIG = parse_model_config({"name": "m", "max_batch_size": 8, "input": [], "output": []})
_IDS = np.array([[3, 1, 3], [0, 999, 5]], np.int64)


def _config(**parameters: str) -> ModelConfig:
    return replace(_CONFIG, parameters=parameters)


def _write(folder: Path, *, external: bool = False) -> Path:
    """A table of 1 MiB, and layers of a quarter of one each."""
    random = np.random.default_rng(7)
    tensors = [numpy_helper.from_array(random.standard_normal((1000, _WIDTH), np.float32), "table")]
    nodes = [helper.make_node("Gather", ["table", "ids"], ["x0"])]
    for layer in range(_LAYERS):
        tensors.append(numpy_helper.from_array(random.standard_normal((_WIDTH, _WIDTH), np.float32) / 16, f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"p{layer}"]))
        nodes.append(helper.make_node("Relu", [f"p{layer}"], [f"x{layer + 1}"]))
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])
    out = helper.make_tensor_value_info(f"x{_LAYERS}", TensorProto.FLOAT, ["batch", "length", _WIDTH])
    model = helper.make_model(
        helper.make_graph(nodes, "g", [ids], [out], tensors), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    file = folder / "model.onnx"
    onnx.save(model, str(file), save_as_external_data=external, location="weights.bin" if external else None)
    return file


def _answer(runtime: Any, ids: Any = _IDS) -> Any:
    return runtime.run([f"x{_LAYERS}"], {"ids": ids})[0]


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("mib", [1, 2, 100])
def test_a_streamed_model_answers_as_a_whole_one_time_and_again(tmp_path: Path, external: bool, mib: int) -> None:
    file = _write(tmp_path, external=external)
    whole = open_model(file, _CONFIG, kind="CPU", device_id=0)
    streamed = open_model(file, _config(weight_memory_mb=str(mib)), kind="CPU", device_id=0)
    assert isinstance(streamed, StreamedRuntime)
    assert streamed.held_bytes <= mib * MIB
    assert streamed.signature == whole.signature
    for _ in range(5):
        np.testing.assert_allclose(_answer(streamed), _answer(whole), rtol=1e-5, atol=1e-6)
    streamed.close()


def test_the_plan_keeps_its_budget_and_leaves_no_operator_out(tmp_path: Path) -> None:
    graph = read_graph(_write(tmp_path))
    plan = make_plan(graph, MIB, "m")
    assert sum(len(part.nodes) for part in plan.parts) == len(graph.nodes)
    assert all(part.weight_bytes <= plan.buffer_bytes for part in plan.parts if not part.stays)
    assert sum(part.weight_bytes for part in plan.parts if part.stays) + 2 * plan.buffer_bytes <= plan.held_bytes <= MIB


def test_a_budget_below_the_least_says_what_works(tmp_path: Path) -> None:
    graph = read_graph(_write(tmp_path))
    with pytest.raises(ConfigError, match="must be at least 1,"):
        make_plan(graph, MIB // 4, "m")


@pytest.mark.parametrize("value", ["0", "-1", "x", "", str(1 << 40)])
def test_bad_budgets_are_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError, match="weight_memory_mb"):
        open_model(_write(tmp_path), _config(weight_memory_mb=value), kind="CPU", device_id=0)


@pytest.mark.parametrize("keep", [0, 10, 100_000])
def test_a_cut_file_is_refused_at_load(tmp_path: Path, keep: int) -> None:
    file = _write(tmp_path)
    os.truncate(file, keep)
    with pytest.raises(ConfigError, match="cannot be streamed"):
        open_model(file, _config(weight_memory_mb="1"), kind="CPU", device_id=0)


def test_a_file_that_is_cut_while_served_fails_requests_and_one_that_is_replaced_does_not(tmp_path: Path) -> None:
    file = _write(tmp_path)
    streamed = open_model(file, _config(weight_memory_mb="1"), kind="CPU", device_id=0)
    before = _answer(streamed)
    held = tmp_path / "held"
    os.link(file, held)
    (tmp_path / "new").write_bytes(b"x")
    os.replace(tmp_path / "new", file)
    np.testing.assert_array_equal(_answer(streamed), before)
    os.truncate(held, 100_000)
    with pytest.raises(ExecutionError, match="was changed while the model was served"):
        [_answer(streamed) for _ in range(3)]
    streamed.close()


def test_wrong_requests_are_refused_and_the_next_is_answered(tmp_path: Path) -> None:
    streamed = open_model(_write(tmp_path), _config(weight_memory_mb="1"), kind="CPU", device_id=0)
    before = _answer(streamed)
    with pytest.raises(RequestError, match=r"0\.\.999"):
        _answer(streamed, np.array([[1000]]))
    with pytest.raises(RequestError, match="inputs must be ids"):
        streamed.run([f"x{_LAYERS}"], {})
    np.testing.assert_array_equal(_answer(streamed), before)
    streamed.close()


def test_weights_elsewhere_than_beside_the_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    file = _write(tmp_path / "1", external=True)
    file.write_bytes(file.read_bytes().replace(b"weights.bin", b"../ghts.bin"))
    with pytest.raises(ConfigError, match="not beside it"):
        open_model(file, _config(weight_memory_mb="1"), kind="CPU", device_id=0)
