"""INT8 graphs: what is rounded, how far the result may be off, and that a text's neighbours change nothing."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from python_backends.export.encoders.bert_graph import bert_graph
from python_backends.export.encoders.embedding import embed_with_onnxruntime
from python_backends.export.recipe import BuildError
from python_backends.export.variants.quantize import fit, quantize, smoothings
from python_backends.runtime.execution import Array
from tests.unit.python_backends.export.tiny_bert import LAYERS, SHAPE, tiny_weights, token_lists


@pytest.fixture(scope="module")
def fused() -> bytes:
    return bert_graph(tiny_weights(), SHAPE, fused=True)


@pytest.fixture(scope="module")
def quantized(fused: bytes) -> bytes:
    return quantize(fused, token_lists(40))


def cosines(fused: bytes, quantized: bytes) -> Array:
    reference, embed = embed_with_onnxruntime(fused), embed_with_onnxruntime(quantized)
    rows = [np.array([ids], dtype=np.int64) for ids in token_lists(20, seed=2)]
    return np.array([(reference(row, np.ones_like(row)) * embed(row, np.ones_like(row))).sum() for row in rows])


def test_it_stays_close_on_texts_that_it_was_not_fitted_to(fused: bytes, quantized: bytes) -> None:
    assert cosines(fused, quantized).min() > 0.995


def test_all_linear_layers_are_integers(quantized: bytes) -> None:
    graph = onnx.load_from_string(quantized).graph
    count = Counter(node.op_type for node in graph.node)
    assert count["QAttention"] == LAYERS
    assert count["MatMulIntegerToFloat"] == 3 * LAYERS
    assert "Attention" not in count
    layer_weights = [entry for entry in graph.initializer if len(entry.dims) == 2 and not entry.name.startswith("embeddings.")]
    assert {entry.data_type for entry in layer_weights} == {TensorProto.INT8}


def test_neighbours_and_padding_change_nothing(quantized: bytes) -> None:
    embed = embed_with_onnxruntime(quantized)
    alone = np.array([[5, 6, 7]], dtype=np.int64)
    ids = np.array([[5, 6, 7, 0, 0], [9, 8, 7, 6, 5]], dtype=np.int64)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], dtype=np.int64)
    np.testing.assert_allclose(embed(ids, mask)[:1], embed(alone, np.ones_like(alone)), atol=1e-5)


def test_the_same_texts_give_the_same_file(fused: bytes, quantized: bytes) -> None:
    assert quantize(fused, token_lists(40)) == quantized
    assert quantize(fused, token_lists(40, seed=3)) != quantized


def test_multiplications_are_spent_where_the_tolerance_asks_for_them(fused: bytes) -> None:
    spent = [
        Counter(node.op_type for node in onnx.load_from_string(quantize(fused, token_lists(40), tolerance=tolerance)).graph.node)["Mul"]
        for tolerance in (0.0, 1e9)
    ]
    # Three of a layer's four products; the projection's factors go into the values.
    assert spent == [3 * LAYERS, 0]


def test_a_graph_without_linear_layers_is_refused() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in "xy")
    model = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y]))
    with pytest.raises(BuildError, match="no linear layer"):
        quantize(model.SerializeToString(), token_lists(1))


def outlier_layer() -> tuple[Array, Array]:
    """Activations of which one channel has a hundred times the range of the others, as in BERT."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((256, 16)).astype(np.float32)
    x[:, 3] *= 100
    return x, draw.standard_normal((16, 8)).astype(np.float32)


def test_smoothing_helps_where_one_channel_has_the_range() -> None:
    x, weight = outlier_layer()
    weight[3] *= 0.01
    plain = fit(x, weight, [np.ones(16, np.float32)], [1.0])
    smooth = fit(x, weight, smoothings(x, weight, [0.5]), [1.0])
    assert smooth.error < plain.error / 50


def test_smoothing_factors_have_a_mean_of_one_and_grow_with_the_channel() -> None:
    x, weight = outlier_layer()
    x[:, 5] = 0
    for factors in smoothings(x, weight, [0.3, 0.7]):
        assert np.exp(np.log(factors).mean()) == pytest.approx(1, rel=1e-4)
        assert factors.argmax() == 3
        assert (factors > 0).all()


def test_clipping_is_chosen_where_a_single_value_has_the_range() -> None:
    x, weight = outlier_layer()
    x[:, 3] /= 100
    x[0, 0] = 12
    none = np.ones(16, np.float32)
    wide, chosen = fit(x, weight, [none], [1.0]), fit(x, weight, [none], [1.0, 0.9])
    assert chosen.error <= wide.error
    assert fit(x[1:], weight, [none], [1.0, 0.1]).scale == fit(x[1:], weight, [none], [1.0]).scale


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        pytest.param(np.zeros((4, 3), np.float32), np.ones((3, 2), np.float32), id="activations that are always 0"),
        pytest.param(np.ones((4, 3), np.float32), np.zeros((3, 2), np.float32), id="weights that are all 0"),
        pytest.param(-np.ones((4, 3), np.float32), np.ones((3, 2), np.float32), id="activations below 0 only"),
    ],
)
def test_degenerate_layers_stay_finite_and_exact(x: Array, weight: Array) -> None:
    integer = fit(x, weight, [np.ones(3, np.float32), *smoothings(x, weight, [0.5])], [1.0])
    assert integer.error < 1e-3
    assert 0 <= integer.zero_point <= 255
    assert np.isfinite(integer.weight_scales).all()
    assert numpy_helper.from_array(integer.weight).data_type == TensorProto.INT8


def test_the_bias_can_take_the_mean_of_the_error() -> None:
    x, weight = outlier_layer()
    integer = fit(x, weight, [np.ones(16, np.float32)], [0.7])
    levels = np.clip(np.rint(x / integer.scale) + integer.zero_point, 0, 255) - integer.zero_point
    output = levels @ integer.weight.astype(np.float64) * (integer.scale * integer.weight_scales)
    np.testing.assert_allclose((output - integer.bias_error).mean(axis=0), (x @ weight).mean(axis=0), atol=1e-3)
