"""The project's models in the real Triton, and models that a user brings."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.http as triton
import tritonclient.http.aio
from onnx import TensorProto, helper

from tests.e2e import raw_http
from tests.e2e.conftest import Start
from tests.e2e.tidegate import PROJECT, Tidegate, run_cli

SENTENCE = "the quick brown fox jumps over the lazy dog"


def text_tensor(texts: list[str]) -> triton.InferInput:
    tensor = triton.InferInput("TEXT", (len(texts), 1), "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()] for text in texts], dtype=np.object_))
    return tensor


def embed(tidegate: Tidegate, texts: list[str]) -> np.ndarray:
    with triton.InferenceServerClient(tidegate.address("http")) as client:
        return client.infer("text_embedding", [text_tensor(texts)]).as_numpy("EMBEDDING")


def executions(tidegate: Tidegate, model: str) -> tuple[int, int]:
    """Requests that a model answered, and the executions that this took."""
    body = raw_http.exchange(tidegate.port("http"), "GET", f"/v2/models/{model}/stats").partition(b"\r\n\r\n")[2]
    stats = json.loads(body)["model_stats"][0]
    return stats["inference_count"], stats["execution_count"]


def test_an_embedding_is_a_unit_vector_of_384(tidegate: Tidegate) -> None:
    found = embed(tidegate, [SENTENCE, "an entirely different subject"])
    assert found.shape == (2, 384)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-5)


def test_samples_have_their_expected_answers(tidegate: Tidegate) -> None:
    samples = json.loads((PROJECT / "ensembles" / "text_embedding" / "samples.json").read_text())
    for sample in samples["samples"]:
        expected = np.array(sample["outputs"]["EMBEDDING"]["first_values"])
        found = embed(tidegate, sample["inputs"]["TEXT"])
        np.testing.assert_allclose(found[:, : expected.shape[1]], expected, atol=samples["tolerance"])


def test_a_text_has_the_same_embedding_alone_and_among_longer_ones(tidegate: Tidegate) -> None:
    together = embed(tidegate, [SENTENCE, SENTENCE + " and so on" * 60])
    np.testing.assert_allclose(together[0], embed(tidegate, [SENTENCE])[0], atol=1e-5)


def test_mixed_lengths_still_meet_in_one_batch(tidegate: Tidegate) -> None:
    texts = [" ".join(["word"] * (4, 20, 60)[number % 3]) for number in range(192)]

    async def send_all() -> None:
        async with tritonclient.http.aio.InferenceServerClient(tidegate.address("http"), conn_limit=32) as client:
            turns = asyncio.Semaphore(32)

            async def send(text: str) -> None:
                async with turns:
                    await client.infer("text_embedding", [text_tensor([text])])

            await asyncio.gather(*map(send, texts))

    requests_before, executions_before = executions(tidegate, "text_encoder")
    asyncio.run(send_all())
    requests_after, executions_after = executions(tidegate, "text_encoder")
    assert requests_after - requests_before == len(texts)
    assert executions_after - executions_before <= len(texts) // 4


@pytest.fixture
def onnx_repository(tmp_path: Path) -> Path:
    """Somebody's ONNX models, as they would run on NVIDIA's image: y = x + 1, with three ways to say so."""
    configs = {"bare": None, "by_platform": 'platform: "onnxruntime_onnx"\nmax_batch_size: 4\n', "by_backend": 'backend: "onnxruntime"\n'}
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in ("x", "y"))
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    graph = helper.make_graph([helper.make_node("Add", ["x", "one"], ["y"])], "add_one", [x], [y], [one])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    for name, config in configs.items():
        version = tmp_path / "repository" / name / "1"
        version.mkdir(parents=True)
        onnx.save(model, version / "model.onnx")
        if config is not None:
            (version.parent / "config.pbtxt").write_text(config)
    return tmp_path / "repository"


def test_anybodys_onnx_repository_runs_unchanged(start: Start, tmp_path: Path, onnx_repository: Path) -> None:
    running = start(tmp_path / "state", "--model-repository", str(onnx_repository), "--load", "*")
    tensor = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6]}
    for name in ("bare", "by_platform", "by_backend"):
        answer = raw_http.infer(running.port("http"), name, {"inputs": [tensor]})
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["outputs"][0]["data"] == [2, 3, 4, 5, 6, 7], name
    (onnx_repository / "bare").rename(onnx_repository / "dropped_in")
    listed = run_cli("models", "load", "dropped_in", "--state-dir", str(running.state_dir))
    assert "READY" in listed.stdout, listed.stderr
    assert running.stop() == 0
