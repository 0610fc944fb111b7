"""The text encoder with a sixth of its weights in memory, beside the whole one in the same real Triton: the same answers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton

from tests.e2e import tidegate as servers
from tests.e2e.tidegate import LONG_S, PROJECT, Tidegate, command_line, descendants

_ENCODER = PROJECT / "model_repository/text_encoder/1/fp32/model.onnx"
_MIB = 16
_PROCESS_MIB = 112
"""Memory of a stub beside its weights: Python, NumPy, ONNX Runtime, and what a batch computes."""
_CONFIG = """
backend: "onnxruntime"
max_batch_size: 32
input [ { name: "INPUT_IDS" data_type: TYPE_INT64 dims: [ -1 ] }, { name: "ATTENTION_MASK" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "EMBEDDING" data_type: TYPE_FP32 dims: [ 384 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
_PARAMETER = 'parameters { key: "weight_memory_mb" value { string_value: "%d" } }\n'


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    root = tmp_path_factory.mktemp("streaming")
    for name, more in (("whole", ""), ("streamed", _PARAMETER % _MIB), ("starved", _PARAMETER % 1)):
        (root / "models" / name / "1").mkdir(parents=True)
        (root / "models" / name / "config.pbtxt").write_text(_CONFIG + more)
        shutil.copyfile(_ENCODER, root / "models" / name / "1/model.onnx")
    flags = ("--model-repository", str(root / "models"), "--load", "whole", "--load", "streamed", "--cache-bytes", "0")
    running = servers.start(root / "state", *flags)
    yield running
    running.kill()


def _client(gateway: Tidegate) -> Any:
    return triton.InferenceServerClient(gateway.address("http"), network_timeout=LONG_S, connection_timeout=LONG_S)


def _embedding(client: Any, model: str, rows: int, length: int) -> Any:
    ids = np.random.default_rng(rows).integers(1000, 29000, (rows, length))
    arrays = {"INPUT_IDS": ids, "ATTENTION_MASK": np.ones_like(ids)}
    inputs = [triton.InferInput(name, array.shape, "INT64") for name, array in arrays.items()]
    for each, array in zip(inputs, arrays.values(), strict=True):
        each.set_data_from_numpy(array)
    return client.infer(model, inputs).as_numpy("EMBEDDING")


def _resident_mib(gateway: Tidegate, model: str) -> int:
    """The most that the model's stub has held."""
    found = []
    for pid in descendants(gateway.process.pid):
        line = command_line(pid)
        if b"stub" in line and f"/{model}/".encode() in line:
            found += [each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmHWM:")]
    return max(int(each.split()[1]) for each in found) // 1024


def test_a_streamed_model_answers_as_the_whole_one_within_its_memory(gateway: Tidegate) -> None:
    client = _client(gateway)
    for rows, length in ((1, 16), (32, 16), (1, 250), (1, 16)):
        whole, streamed = (_embedding(client, model, rows, length) for model in ("whole", "streamed"))
        np.testing.assert_allclose(streamed, whole, atol=1e-5)
    held = {model: _resident_mib(gateway, model) for model in ("streamed", "whole")}
    assert held["streamed"] < _MIB + _PROCESS_MIB, held
    assert held["streamed"] < held["whole"], held


def test_a_budget_that_is_too_small_is_refused_with_the_least_that_works(gateway: Tidegate) -> None:
    with pytest.raises(triton.InferenceServerException, match="must be at least 5"):
        _client(gateway).load_model("starved")
