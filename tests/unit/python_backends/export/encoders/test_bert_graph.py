"""The graph computes what PyTorch does, in either form and of any width, and equal weights give equal bytes."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from python_backends.export.discovery import load_targets
from python_backends.export.encoders import minilm
from python_backends.export.encoders.bert_graph import BertShape, bert_graph
from python_backends.export.encoders.embedding import embed_padded, embed_with_onnxruntime
from python_backends.export.encoders.sentence_encoder import embed_with_torch
from python_backends.export.encoders.sentence_model import SentenceModel
from python_backends.export.recipe import BuildError
from python_backends.export.variants.prune import prune
from tests.unit.python_backends.export.tiny_bert import HEADS, LAYERS, SHAPE, tiny_encoder, tiny_weights, token_lists

PROJECT = Path(__file__).resolve().parents[5]
FORMS = [pytest.param(False, id="standard"), pytest.param(True, id="fused")]


@pytest.mark.parametrize("fused", FORMS)
def test_it_computes_what_pytorch_does(fused: bool) -> None:
    encoder = tiny_encoder()
    reference, embed = embed_with_torch(encoder), embed_with_onnxruntime(bert_graph(tiny_weights(encoder), SHAPE, fused=fused))
    for ids in token_lists(8):
        row = np.array([ids])
        np.testing.assert_allclose(embed(row, np.ones_like(row)), reference(row, np.ones_like(row)), atol=1e-5)


@pytest.mark.parametrize("fused", FORMS)
def test_padding_on_either_side_has_no_influence(fused: bool) -> None:
    encoder = tiny_encoder()
    embed = embed_with_onnxruntime(bert_graph(tiny_weights(encoder), SHAPE, fused=fused))
    ids = np.array([[5, 6, 7, 0, 0], [0, 0, 5, 6, 7]])
    mask = np.array([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1]])
    np.testing.assert_allclose(embed(ids, mask), embed_with_torch(encoder)(ids, mask), atol=1e-5)
    alone = np.array([[5, 6, 7]])
    np.testing.assert_allclose(embed(ids, mask)[:1], embed(alone, np.ones_like(alone)), atol=1e-5)


def test_the_published_model_is_pytorchs_and_the_file_is_the_one_that_was_verified() -> None:
    model = SentenceModel(weights=minilm.WEIGHTS, config=minilm.CONFIG, tokenizer=minilm.TOKENIZER, max_tokens=256)
    (target,) = (target for target in load_targets(PROJECT / "model_repository" / "text_encoder") if target.variant == "fp32")
    assert target.recipe.serving is not None
    assert hashlib.sha256(model.fused_onnx).hexdigest() == target.recipe.serving.sha256

    sentences = (PROJECT / "model_repository" / "text_encoder" / "texts" / "sentences.txt").read_text().splitlines()[::12]
    token_ids = model.tokenize(sentences)
    reference, forms = embed_with_torch(model.encoder), [embed_with_onnxruntime(form) for form in (model.fused_onnx, model.onnx)]
    expected = embed_padded(reference, token_ids, batch_size=len(token_ids))
    for embed in forms:
        np.testing.assert_allclose(embed_padded(embed, token_ids, batch_size=len(token_ids)), expected, atol=1e-5)


@pytest.mark.parametrize("fused", FORMS)
def test_equal_weights_give_equal_bytes_and_others_do_not(fused: bool) -> None:
    graph = bert_graph(tiny_weights(), SHAPE, fused=fused)

    assert bert_graph(tiny_weights(), SHAPE, fused=fused) == graph
    assert bert_graph(tiny_weights(tiny_encoder(seed=1)), SHAPE, fused=fused) != graph


def test_the_standard_form_has_the_standards_operators_only() -> None:
    model = onnx.load_from_string(bert_graph(tiny_weights(), SHAPE, fused=False))

    onnx.checker.check_model(model, full_check=True)
    assert {entry.domain for entry in model.opset_import} == {""}


def test_the_fused_form_has_the_operators_that_are_fast() -> None:
    count = Counter(node.op_type for node in onnx.load_from_string(bert_graph(tiny_weights(), SHAPE, fused=True)).graph.node)

    assert count["Attention"] == count["Gelu"] == LAYERS
    # Loading would fuse an addition before a normalisation into an operator that is slower.
    assert count["LayerNormalization"] == count["Sub"] == 2 * LAYERS
    assert count["EmbedLayerNormalization"] == 1
    assert not {"Softmax", "Erf", "Shape"} & set(count)


def test_both_forms_of_a_narrower_model_agree() -> None:
    pruned = prune(tiny_weights(), SHAPE, token_lists(20), keep_neurons=0.5, keep_heads=HEADS - 1)
    standard, fused = (embed_with_onnxruntime(bert_graph(pruned, SHAPE, fused=fused)) for fused in (False, True))
    row = np.array([token_lists(1)[0]])
    np.testing.assert_allclose(fused(row, np.ones_like(row)), standard(row, np.ones_like(row)), atol=1e-5)


def without(name: str) -> dict[str, np.ndarray]:
    weights = tiny_weights()
    del weights[name]
    return weights


@pytest.mark.parametrize(
    ("weights", "shape", "sentence"),
    [
        pytest.param(
            without("encoder.layer.1.output.dense.bias"),
            SHAPE,
            r"missing \['encoder.layer.1.output.dense.bias'\], unexpected \[\]",
            id="lacks",
        ),
        pytest.param(
            {**tiny_weights(), "classifier.weight": np.ones(1)}, SHAPE, r"missing \[\], unexpected \['classifier.weight'\]", id="one-more"
        ),
        pytest.param(tiny_weights(), replace(SHAPE, layers=3), r"missing \['encoder.layer.2", id="fewer-layers"),
        pytest.param(
            tiny_weights(),
            replace(SHAPE, vocabulary=60),
            r"word_embeddings.weight is \[50, 32\] instead of \[60, 32\]",
            id="other-vocabulary",
        ),
        pytest.param(
            {**tiny_weights(), "encoder.layer.0.output.dense.weight": np.ones((31, 64))},
            SHAPE,
            r"encoder.layer.0.output.dense.weight is \[31, 64\] instead of \[32, 'any'\]",
            id="other-size",
        ),
    ],
)
def test_weights_of_another_model_are_refused(weights: dict[str, np.ndarray], shape: BertShape, sentence: str) -> None:
    with pytest.raises(BuildError, match=f"the weights do not fit the model: .*{sentence}"):
        bert_graph(weights, shape, fused=True)


@pytest.mark.parametrize(("key", "value"), [("hidden_act", "relu"), ("position_embedding_type", "relative_key")])
def test_a_bert_of_another_kind_is_refused(key: str, value: str) -> None:
    config = {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "vocab_size": 50,
        "max_position_embeddings": 32,
        "layer_norm_eps": 1e-12,
    }
    assert BertShape.of({**config, "hidden_act": "gelu"}) == SHAPE
    with pytest.raises(BuildError, match=f"config.json says {key} '{value}'"):
        BertShape.of({**config, key: value})
