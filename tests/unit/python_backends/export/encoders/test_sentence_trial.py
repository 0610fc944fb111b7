"""Trying out a sentence encoder: all texts, padded as they are served, beside FP32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from python_backends.export.encoders.sentence_encoder import embed_with_torch
from python_backends.export.encoders.sentence_model import SentenceModel
from python_backends.export.encoders.sentence_trial import SentenceTrial
from python_backends.export.recipe import BuildError
from python_backends.runtime.execution import Array
from tests.unit.python_backends import tiny_encoder
from tests.unit.python_backends.export.tiny_sentence_model import files, sentence_model

SENTENCES = "the cat\nthe cat sats\n\nsat\n"
PAIRS = "5\tthe cat\tthe cats\n1\tthe cat\tsat\n3\tcat sat\tcat sats\n0\tthe\tcats sats sat\n"
BENCHMARK = "the cat,the cats,4.5\nsat,the,0.5\ncat,the sats sat,2.5\n"

# All of both, each once.
TEXTS = 8


class Spoiled:
    """The encoder, seen from a runtime, with noise on what it returns; remembers the shapes and padding that it was given."""

    def __init__(self, model: SentenceModel, noise: float = 0.0) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.saw_padding = False
        self._embed = embed_with_torch(model.encoder)
        self._noise, self._random = noise, np.random.default_rng(3)

    def run(self, output_names: Sequence[str], inputs: Mapping[str, Array]) -> Sequence[Array]:
        assert output_names == ["EMBEDDING"]
        self.shapes.append(inputs["INPUT_IDS"].shape)
        self.saw_padding |= not inputs["ATTENTION_MASK"].all()
        embedding = self._embed(inputs["INPUT_IDS"], inputs["ATTENTION_MASK"])
        return [embedding + self._noise * self._random.standard_normal(embedding.shape).astype(np.float32)]


@pytest.fixture
def model(tmp_path: Path) -> SentenceModel:
    return sentence_model(**files(tmp_path))


@pytest.fixture
def trial(tmp_path: Path, model: SentenceModel) -> SentenceTrial:
    (tmp_path / "sentences.txt").write_text(SENTENCES)
    (tmp_path / "similarity.tsv").write_text(PAIRS)
    return SentenceTrial(model, name="m", sentences=tmp_path / "sentences.txt", similarity=tmp_path / "similarity.tsv")


def test_the_encoder_itself_agrees_with_itself(trial: SentenceTrial, model: SentenceModel) -> None:
    exact = Spoiled(model)

    agreement = trial.compare(exact.run)

    assert agreement["against_fp32"] == pytest.approx({"texts": TEXTS, "cosine_p1": 1, "cosine_p50": 1, "cosine_min": 1}, abs=1e-5)
    similarity = agreement["similarity"]
    assert (similarity["pairs"], similarity["relative_loss"], similarity["spearman"]) == (4, 0, similarity["spearman_fp32"])
    # As served: several at once, of different lengths.
    assert (exact.shapes[0][0], exact.saw_padding) == (TEXTS, True)


def test_one_that_is_off_is_seen_to_be(trial: SentenceTrial, model: SentenceModel) -> None:
    agreement = trial.compare(Spoiled(model, noise=0.2).run)

    assert agreement["against_fp32"]["cosine_min"] < agreement["against_fp32"]["cosine_p50"] < 0.99


def test_the_benchmark_is_ranked_beside_the_reference(trial: SentenceTrial, model: SentenceModel, tmp_path: Path) -> None:
    path = tmp_path / "sts.csv"
    path.write_text(BENCHMARK)

    measures = trial.benchmark(Spoiled(model).run, path)

    assert (measures["pairs"], measures["relative_loss"]) == (3, 0)


def test_a_benchmark_of_another_form_is_refused(trial: SentenceTrial, model: SentenceModel, tmp_path: Path) -> None:
    path = tmp_path / "sts.csv"
    path.write_text("no pairs")

    with pytest.raises(BuildError, match="line 1: not two sentences and a number"):
        trial.benchmark(Spoiled(model).run, path)


def test_the_reference_is_computed_once_for_all_variants(trial: SentenceTrial, model: SentenceModel) -> None:
    first = trial.compare(Spoiled(model).run)
    # Were the reference computed again, it would be with this file.
    model.onnx = b"no graph"

    assert trial.compare(Spoiled(model).run) == first


def test_a_runtime_is_told_the_models_tensors(trial: SentenceTrial) -> None:
    config = trial.config

    assert config.name == "m"
    assert [(tensor.name, tensor.data_type, tensor.dims) for tensor in (*config.inputs, *config.outputs)] == [
        ("INPUT_IDS", "TYPE_INT64", (-1,)),
        ("ATTENTION_MASK", "TYPE_INT64", (-1,)),
        ("EMBEDDING", "TYPE_FP32", (tiny_encoder.HIDDEN,)),
    ]


def test_inputs_have_the_shape_that_is_measured(trial: SentenceTrial) -> None:
    inputs = trial.inputs(3, 5)

    assert {name: (array.shape, array.dtype) for name, array in inputs.items()} == {
        "INPUT_IDS": ((3, 5), np.int64),
        "ATTENTION_MASK": ((3, 5), np.int64),
    }
    assert inputs["ATTENTION_MASK"].all()
    assert inputs["INPUT_IDS"].max() < tiny_encoder.VOCABULARY
