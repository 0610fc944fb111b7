"""Loads that bring their own configuration or files: in force until an unload, also in a Triton that was restarted."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
from pathlib import Path

from tests.e2e import raw_http
from tests.e2e.conftest import MODELS, Start
from tests.e2e.processes import triton_pid
from tests.e2e.tidegate import Tidegate, wait_for

MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", 2 * tensor)]) for tensor in tensors]
"""
CONFIG = {
    "backend": "python",
    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [1]}],
}


def post(tidegate: Tidegate, path: str, body: object = None) -> bytes:
    return raw_http.exchange(tidegate.port("http"), "POST", path, json.dumps(body).encode() if body else b"")


def json_of(answer: bytes) -> dict[str, object]:
    found: dict[str, object] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return found


def config_of(tidegate: Tidegate, model: str) -> dict[str, object]:
    return json_of(raw_http.exchange(tidegate.port("http"), "GET", f"/v2/models/{model}/config"))


def restart_triton(tidegate: Tidegate) -> None:
    before = triton_pid(tidegate)
    os.kill(before, signal.SIGKILL)
    target = "/v2/health/ready"
    wait_for(lambda: raw_http.status(raw_http.exchange(tidegate.port("http"), "GET", target)) != 200, what="the end")
    wait_for(lambda: raw_http.status(raw_http.exchange(tidegate.port("http"), "GET", target)) == 200, what="the restart")


def test_a_configuration_and_files_of_a_model_that_is_in_no_repository(start: Start, tmp_path: Path) -> None:
    echo = shutil.copytree(MODELS / "echo", tmp_path / "repository" / "echo")
    running = start(tmp_path / "state", "--model-repository", str(echo.parent), "--load", "echo")
    config = config_of(running, "echo") | {"max_batch_size": 16}
    load, unload = (f"/v2/repository/models/echo/{what}" for what in ("load", "unload"))
    assert raw_http.status(post(running, load, {"parameters": {"config": json.dumps(config)}})) == 200
    assert config_of(running, "echo")["max_batch_size"] == 16
    assert raw_http.status(post(running, load)) == 200
    assert config_of(running, "echo")["max_batch_size"] == 16, "a load without one repeats it"
    (echo / "1" / "model.py").touch()
    assert raw_http.status(post(running, load)) == 200
    assert config_of(running, "echo")["max_batch_size"] == 16, "with changed files, too"
    files = {"file:1/model.py": base64.b64encode(MODEL.encode()).decode()}
    answer = post(running, "/v2/repository/models/brought/load", {"parameters": {"config": json.dumps(CONFIG), **files}})
    assert raw_http.status(answer) == 200, answer
    assert brought_answers(running) == [42.0]

    restart_triton(running)
    assert config_of(running, "echo")["max_batch_size"] == 16
    assert brought_answers(running) == [42.0]

    assert raw_http.status(post(running, unload)) == 200
    wait_for(lambda: raw_http.status(post(running, load)) == 200 and config_of(running, "echo")["max_batch_size"] == 8, what="its own")
    restart_triton(running)
    assert config_of(running, "echo")["max_batch_size"] == 8


def brought_answers(tidegate: Tidegate) -> object:
    """The double of 21."""
    request = {"inputs": [{"name": "X", "shape": [1], "datatype": "FP32", "data": [21]}]}
    outputs = json_of(raw_http.infer(tidegate.port("http"), "brought", request))["outputs"]
    assert isinstance(outputs, list)
    (output,) = outputs
    assert (output["name"], output["datatype"], output["shape"]) == ("Y", "FP32", [1])
    return output["data"]
