"""A model that lies in S3 loads in the real Triton and answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton

from tests.aio import run
from tests.e2e.conftest import MODELS, Start
from tests.s3_server import BUCKET, s3_server
from tests.warm_fetcher import fetch


def test_a_model_of_s3_is_fetched_placed_loaded_and_answers(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm = tmp_path / "warm"
    with s3_server() as server:
        for file in (MODELS / "echo").rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                server.put(f"cold/echo/{file.relative_to(MODELS / 'echo')}", file.read_bytes())
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        run(fetch(f"s3://{BUCKET}/cold", warm, "echo"))
    running = start(tmp_path / "state", "--model-repository", str(warm), "--load", "echo")
    with triton.InferenceServerClient(running.address("http")) as client:
        sent = np.arange(4, dtype=np.float32).reshape(1, 4)
        tensor = triton.InferInput("INPUT0", sent.shape, "FP32")
        tensor.set_data_from_numpy(sent)
        answer = client.infer("echo", [tensor]).as_numpy("OUTPUT0")
    np.testing.assert_array_equal(answer, sent)
    assert running.stop() == 0
