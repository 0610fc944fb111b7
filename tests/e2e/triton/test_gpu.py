"""Models on a real GPU: the shipped ones, and how a fleet weighs what models take of its memory. Skipped where nothing computes on one."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from control_plane.host.memory.gpu_memory import GpuMemory
from control_plane.models.adapters.profile import ask_libraries
from tests.e2e import tidegate as servers
from tests.e2e.conftest import Start
from tests.e2e.fleets import answer_of, ask, loaded, shown
from tests.e2e.nodes import PLACES, fleet_on
from tests.e2e.raw_http import exchange, status
from tests.e2e.tidegate import LONG_S, Tidegate, proc_files, run_cli, wait_for
from tests.unit.python_backends.text_generator.tiny_language_model import WORDS, save_language_model

pytestmark = pytest.mark.gpu

GIB = 2**30
BUDGET_BYTES = 5 * GIB
HELD_BYTES = {"m0": GIB, "m1": 2 * GIB, "m2": 2 * GIB}
"""What each model takes of the GPU beside its CUDA context, which is some 500 MiB; two of them fit beside each other."""
LOADING_S = 300.0
"""PyTorch compiles the shipped encoder, for most of a minute on a quick machine."""

_CODE = """
import torch
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.device = torch.device("cuda", int(args["model_instance_device_id"]))
        self.held = torch.ones({held}, dtype=torch.uint8, device=self.device)

    def execute(self, requests):
        found = [torch.from_numpy(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()) for request in requests]
        answers = [(each.to(self.device) + self.held[0]).cpu().numpy() for each in found]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each)]) for each in answers]
"""
_CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_GPU count: 1 } ]
"""


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    if not Path("/dev/nvidia0").exists():
        pytest.skip("no NVIDIA GPU")
    if why_not := ask_libraries()["torch"]:
        pytest.skip(f"PyTorch does not compute on the GPU: {why_not}")


@pytest.fixture(scope="module", params=PLACES)
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    repository = tmp_path_factory.mktemp("models")
    for name, held in HELD_BYTES.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1/model.py").write_text(_CODE.format(held=held))
        (repository / name / "config.pbtxt").write_text(_CONFIG)
    flags = ("--memory-budget", "5GiB")
    with fleet_on(request.param, tmp_path_factory.mktemp("fleet"), *flags, repository=repository, count=1) as (running, _):
        yield running


def tritons(fleet: Tidegate) -> set[int]:
    lines = proc_files(fleet.below(), "cmdline")
    return {pid for pid, line in lines.items() if line.partition("\0")[0].endswith("/tritonserver")}


def held_by_models(fleet: Tidegate) -> int:
    """GPU memory of all processes of the fleet by NVIDIA's driver, but for Triton's own context, which is in no budget."""
    return GpuMemory().read(fleet.below() - tritons(fleet))


def test_models_weigh_what_the_driver_says_they_hold(fleet: Tidegate) -> None:
    assert answer_of(ask(fleet, "m0")) == 2
    assert answer_of(ask(fleet, "m1")) == 2

    (server,) = shown(fleet)["servers"]
    weights = {replica["model"]: replica["bytes"] for replica in server["replicas"]}
    for name, weight in weights.items():
        assert HELD_BYTES[name] < weight < HELD_BYTES[name] + GIB, weights
    assert abs(sum(weights.values()) - held_by_models(fleet)) < GIB / 4


def test_what_the_gpu_has_no_room_for_takes_the_place_of_another(fleet: Tidegate) -> None:
    for name in HELD_BYTES:
        assert answer_of(ask(fleet, name)) == 2
        wait_for(lambda: held_by_models(fleet) <= BUDGET_BYTES, what="as much memory as the budget")
    assert any("m2" in models for models in loaded(fleet).values())
    # Their sizes are known now: nothing has to go after the fact.
    for name in HELD_BYTES:
        assert answer_of(ask(fleet, name)) == 2
        assert held_by_models(fleet) <= BUDGET_BYTES


def test_a_killed_triton_leaves_nothing_on_the_gpu_and_serves_again(fleet: Tidegate) -> None:
    assert answer_of(ask(fleet, "m0")) == 2
    below = fleet.below()
    for triton in tritons(fleet):
        os.kill(triton, signal.SIGKILL)
    wait_for(lambda: GpuMemory().read(below) == 0, what="the end of what it held")
    wait_for(lambda: status(ask(fleet, "m0")) == 200, what="an answer from the Triton that was started after it")
    assert 0 < held_by_models(fleet) <= BUDGET_BYTES


TEXTS = ["one", "Is this the gate of the tide?", "a longer text than the others " * 12, "words " * 400]


def embeddings(running: Tidegate, texts: list[str]) -> NDArray[np.float32]:
    body = json.dumps({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [len(texts), 1], "data": texts}]}).encode()
    raw = exchange(running.port("http"), "POST", "/v2/models/text_embedding/infer", body, timeout_s=LOADING_S)
    assert status(raw) == 200, raw[:1000]
    (found,) = (each for each in json.loads(raw.partition(b"\r\n\r\n")[2])["outputs"] if each["name"] == "EMBEDDING")
    return np.array(found["data"], np.float32).reshape(found["shape"])


@pytest.mark.timeout(2 * LOADING_S)
def test_the_shipped_encoder_answers_from_the_gpu_as_from_the_cpu(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "LONG_S", LOADING_S)
    on_gpu = start(tmp_path / "gpu", "--load", "text_embedding")
    listed = run_cli("models", "list", "--output", "json", "--state-dir", str(on_gpu.state_dir))
    variants = {model["name"]: model["variant"] for model in json.loads(listed.stdout)}
    assert variants["text_encoder"] in ("compiled", "tensorrt"), listed.stdout
    monkeypatch.setenv("TIDEGATE_MODEL_CONFIG_NAME", "none-of-these")  # so their plain config.pbtxt
    on_cpu = start(tmp_path / "cpu", "--load", "text_embedding", "--model-parameter", "text_encoder:variant=fp32")

    for texts in ([TEXTS[0]], TEXTS, TEXTS * 16):
        cosines = np.einsum("ij,ij->i", embeddings(on_gpu, texts), embeddings(on_cpu, texts))
        assert cosines.min() > 0.995, cosines
    wait_for(lambda: held_by_models(on_gpu) > 0, what="memory on the GPU", timeout_s=LONG_S)
    assert held_by_models(on_cpu) == 0


MIB = 2**20
WHOLE_MIB, PART_MIB = 770, 140
"""MiB of weights on the GPU: all twelve layers of 64 MiB, and the smallest budget that is accepted."""
_LANGUAGE_MODEL = """
backend: "text_generator"
instance_group [ { kind: KIND_GPU count: 1 } ]
parameters { key: "folder" value: { string_value: "%s" } }
"""
_PART = f'parameters {{ key: "weight_memory_mb" value: {{ string_value: "{PART_MIB}" }} }}\n'


def written(running: Tidegate, model: str, words: Sequence[str]) -> str:
    sampling = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
    body = {"text_input": " ".join(words), "sampling_parameters": json.dumps(sampling), "exclude_input_in_output": True}
    request = urllib.request.Request(f"{running.endpoints['http']}/v2/models/{model}/generate", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=LOADING_S) as answer:
        text: str = json.load(answer)["text_output"]
    return text


def held_by(running: Tidegate, model: str) -> int:
    lines = proc_files(running.below(), "cmdline")
    return GpuMemory().read({pid for pid, line in lines.items() if "python_backend_stub" in line and f"/{model}/" in line})


@pytest.mark.timeout(2 * LOADING_S)
def test_a_language_model_with_a_part_of_its_weights_on_the_gpu_writes_the_same(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "LONG_S", LOADING_S)
    config = _LANGUAGE_MODEL % save_language_model(tmp_path / "weights", hidden_size=1024, layers=12)
    for name, more in (("whole", ""), ("part", _PART)):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        (tmp_path / "models" / name / "config.pbtxt").write_text(config + more)
    running = start(tmp_path / "state", "--model-repository", str(tmp_path / "models"), "--load", "whole", "--load", "part")

    for count in (1, 30, 100):
        asked = WORDS[2 : 2 + count]
        assert written(running, "part", asked) == written(running, "whole", asked)
    assert held_by(running, "whole") - held_by(running, "part") > (WHOLE_MIB - PART_MIB) * MIB * 0.9
