"""Backend `text_generator` from Triton's side: what it refuses to load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from python_backends.runtime.errors import ConfigError
from tests.unit.python_backends.configs import config_json, parameters
from tests.unit.python_backends.fake_triton import initialize_args, stub


@pytest.mark.parametrize(
    ("kind", "mib", "why"),
    [
        pytest.param("CPU", "16", "is for a GPU: on a CPU all weights stay in memory", id="on a CPU"),
        pytest.param("GPU", "0", "must be MiB in 1..", id="no memory"),
    ],
)
def test_weights_that_cannot_be_streamed_are_refused(tmp_path: Path, kind: str, mib: str, why: str) -> None:
    folder = tmp_path / "m" / "1"
    config = config_json(parameters=parameters(weight_memory_mb=mib), model_transaction_policy={"decoupled": True})
    arguments = initialize_args(folder, json.dumps(config), kind=kind)
    with stub("text_generator", folder) as backend, pytest.raises(ConfigError, match=why):
        backend().initialize(arguments)
