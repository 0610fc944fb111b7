"""Backend `text_generator` from Triton's side: what it refuses to load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from python_backends.runtime.errors import ConfigError
from tests.unit.python_backends.configs import config_json, parameters
from tests.unit.python_backends.fake_triton import initialize_args, stub


def test_weights_that_cannot_be_streamed_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "m" / "1"
    config = config_json(parameters=parameters(weight_memory_mb="16"), model_transaction_policy={"decoupled": True})
    with stub("text_generator", folder) as backend, pytest.raises(ConfigError, match="streams weights of ONNX models only"):
        backend().initialize(initialize_args(folder, json.dumps(config)))
