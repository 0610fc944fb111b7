"""A published encoder: read once, with equal results in each of its forms."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from python_backends.export.encoders.embedding import embed_with_onnxruntime
from python_backends.export.encoders.sentence_encoder import embed_with_torch
from python_backends.export.encoders.sentence_model import SentenceModel
from python_backends.export.recipe import BuildError
from tests.unit.python_backends import tiny_encoder
from tests.unit.python_backends.export.tiny_sentence_model import MAX_TOKENS, GivenFile, files, sentence_model
from tests.unit.python_backends.text_tokenizer.tiny_tokenizer import CAT, CLS, SAT, SEP, THE


@pytest.fixture
def given(tmp_path: Path) -> dict[str, GivenFile]:
    return files(tmp_path)


@pytest.fixture
def model(given: dict[str, GivenFile]) -> SentenceModel:
    return sentence_model(**given)


def test_texts_are_cut_and_not_padded(model: SentenceModel) -> None:
    assert model.tokenize(["the cat", "the cat sat the cat sat the cat"]) == [[CLS, THE, CAT, SEP], [CLS, THE, CAT, SAT, THE, SEP]]
    assert MAX_TOKENS == 6


def test_every_form_computes_the_same(model: SentenceModel) -> None:
    inputs = tiny_encoder.texts(3, 9)
    expected = tiny_encoder.NumpyEncoder(tiny_encoder.encoder())(inputs)

    for embed in (embed_with_torch(model.encoder), embed_with_onnxruntime(model.onnx), embed_with_onnxruntime(model.fused_onnx)):
        np.testing.assert_allclose(embed(inputs["INPUT_IDS"], inputs["ATTENTION_MASK"]), expected, atol=1e-5)
    # One stays in the standard's operators, the other does not.
    assert (b"com.microsoft" in model.onnx, b"com.microsoft" in model.fused_onnx) == (False, True)


def test_nothing_is_read_before_it_is_needed_nor_twice(given: dict[str, GivenFile]) -> None:
    model = sentence_model(**given)
    assert [file.reads for file in given.values()] == [0, 0, 0]

    for _ in range(2):
        _ = model.weights, model.encoder, model.onnx
        model.tokenize(["the cat"])

    assert [file.reads for file in given.values()] == [1, 2, 1], "config.json is small"


def test_weights_of_another_model_are_refused(given: dict[str, GivenFile]) -> None:
    config = json.loads(given["config"].read())
    given["config"] = GivenFile(json.dumps({**config, "num_hidden_layers": config["num_hidden_layers"] + 1}).encode())

    for form in ("encoder", "onnx"):
        with pytest.raises(BuildError, match="the weights do not fit the model: missing "):
            getattr(sentence_model(**given), form)
