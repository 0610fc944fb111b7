"""The project's models in the real Triton, and models that a user brings."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.http as triton
import tritonclient.http.aio
from onnx import TensorProto, helper

from tests.e2e import raw_http
from tests.e2e.conftest import Start
from tests.e2e.tidegate import PROJECT, Tidegate, run_cli, wait_for

SENTENCE = "the quick brown fox jumps over the lazy dog"


def text_tensor(texts: list[str]) -> triton.InferInput:
    tensor = triton.InferInput("TEXT", (len(texts), 1), "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()] for text in texts], dtype=np.object_))
    return tensor


def embed(tidegate: Tidegate, texts: list[str]) -> np.ndarray:
    with triton.InferenceServerClient(tidegate.address("http")) as client:
        return client.infer("text_embedding", [text_tensor(texts)]).as_numpy("EMBEDDING")


def batched(tidegate: Tidegate, count: str) -> float:
    """What the encoder's batching has counted; Triton's own execution count is how often it handed requests over."""
    with urllib.request.urlopen(tidegate.endpoints["metrics"]) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f'tidegate_batching_{count}{{model="text_encoder"'))


def test_an_embedding_is_a_unit_vector_of_384(tidegate: Tidegate) -> None:
    found = embed(tidegate, [SENTENCE, "an entirely different subject"])
    assert found.shape == (2, 384)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-5)


def test_a_variant_is_one_setting_away_and_the_exact_one_answers_the_samples(tidegate: Tidegate, start: Start, tmp_path: Path) -> None:
    exact = start(tmp_path / "state", "--model-parameter", "text_encoder:variant=fp32")
    samples = json.loads((PROJECT / "ensembles" / "text_embedding" / "samples.json").read_text())
    for sample in samples["samples"]:
        texts = sample["inputs"]["TEXT"]
        expected = np.array(sample["outputs"]["EMBEDDING"]["first_values"])
        reference = embed(exact, texts)
        np.testing.assert_allclose(reference[:, : expected.shape[1]], expected, atol=samples["tolerance"])
        # What is served by default is the fastest that its gate lets pass.
        assert np.einsum("ij,ij->i", reference, embed(tidegate, texts)).min() > 0.98


def test_a_text_has_the_same_embedding_alone_and_among_longer_ones(tidegate: Tidegate) -> None:
    together = embed(tidegate, [SENTENCE, SENTENCE + " and so on" * 60])
    # Of INT8 a rounding may fall the other way; ranges that depended on the neighbours would show in the second decimal.
    assert together[0] @ embed(tidegate, [SENTENCE])[0] > 0.9995


def test_mixed_lengths_still_meet_in_one_batch(tidegate: Tidegate) -> None:
    # No two alike, or the second would be found in the cache.
    texts = [" ".join([str(number), *["word"] * (4, 20, 60)[number % 3]]) for number in range(96)]

    async def send_all() -> None:
        async with tritonclient.http.aio.InferenceServerClient(tidegate.address("http"), conn_limit=32) as client:
            turns = asyncio.Semaphore(32)

            async def send(text: str) -> None:
                async with turns:
                    await client.infer("text_embedding", [text_tensor([text])])

            await asyncio.gather(*map(send, texts))

    requests_before, batches_before = batched(tidegate, "requests_total"), batched(tidegate, "batches_total")
    asyncio.run(send_all())

    def requests() -> float:
        return batched(tidegate, "requests_total") - requests_before

    # Counts are handed over twice a second.
    wait_for(lambda: requests() >= len(texts), what="the count of requests")
    # How many meet depends on how fast this machine sends; without batching none would.
    assert batched(tidegate, "batches_total") - batches_before < requests()


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
