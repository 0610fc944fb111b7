"""The fused graph computes what the exported one does, in the operators that are fast."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from python_backends.export.fuse import fuse_bert
from python_backends.export.recipe import BuildError
from python_backends.export.sentence_encoder import embed_with_onnxruntime, embed_with_torch, export_to_onnx
from tests.unit.python_backends.export.tiny_bert import HEADS, HIDDEN_SIZE, LAYERS, tiny_encoder, token_lists


@pytest.fixture(scope="module")
def fused() -> bytes:
    return fuse_bert(export_to_onnx(tiny_encoder(), opset=17), heads=HEADS, hidden_size=HIDDEN_SIZE)


def test_it_computes_the_same(fused: bytes) -> None:
    reference, embed = embed_with_torch(tiny_encoder()), embed_with_onnxruntime(fused)
    for ids in token_lists(8):
        row = np.array([ids], dtype=np.int64)
        np.testing.assert_allclose(embed(row, np.ones_like(row)), reference(row, np.ones_like(row)), atol=1e-5)


def test_padding_on_either_side_has_no_influence(fused: bytes) -> None:
    embed = embed_with_onnxruntime(fused)
    reference = embed_with_torch(tiny_encoder())
    ids = np.array([[5, 6, 7, 0, 0], [0, 0, 5, 6, 7]], dtype=np.int64)
    mask = np.array([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1]], dtype=np.int64)
    np.testing.assert_allclose(embed(ids, mask), reference(ids, mask), atol=1e-5)
    alone = np.array([[5, 6, 7]], dtype=np.int64)
    np.testing.assert_allclose(embed(ids, mask)[:1], embed(alone, np.ones_like(alone)), atol=1e-5)


def test_it_has_the_operators_that_are_fast(fused: bytes) -> None:
    proto = onnx.load_from_string(fused)
    count = Counter(node.op_type for node in proto.graph.node)
    assert count["Attention"] == LAYERS
    assert count["LayerNormalization"] == count["Sub"] == 2 * LAYERS
    assert count["EmbedLayerNormalization"] == 1
    assert not {"SkipLayerNormalization", "Softmax", "Erf"} & set(count)
    assert "com.microsoft" in {entry.domain for entry in proto.opset_import}


def test_parameters_that_layers_share_are_not_negated_for_one_of_them() -> None:
    encoder = tiny_encoder()
    first, second = encoder.bert.encoder.layer
    with torch.no_grad():
        # The exporter makes one constant of equal ones.
        second.output.dense.bias.copy_(first.output.dense.bias)
        second.output.dense.weight.copy_(first.output.dense.weight)
    fused = fuse_bert(export_to_onnx(encoder, opset=17), heads=HEADS, hidden_size=HIDDEN_SIZE)
    row = np.array([token_lists(1)[0]], dtype=np.int64)
    expected = embed_with_torch(encoder)(row, np.ones_like(row))
    np.testing.assert_allclose(embed_with_onnxruntime(fused)(row, np.ones_like(row)), expected, atol=1e-5)


def test_a_graph_that_is_no_bert_is_refused() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 2]) for name in "xy")
    weight = numpy_helper.from_array(np.eye(2, dtype=np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "no_bert", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(BuildError, match="no attention could be fused"):
        fuse_bert(model.SerializeToString(), heads=HEADS, hidden_size=HIDDEN_SIZE)
