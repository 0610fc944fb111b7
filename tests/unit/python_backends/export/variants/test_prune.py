"""Structured pruning: what stays, what the repair makes up for, and that the original is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from python_backends.export.encoders.bert_graph import bert_graph, layer_name
from python_backends.export.encoders.embedding import embed_with_onnxruntime
from python_backends.export.variants.prune import Weights, moments_of, prune, remove_inputs
from python_backends.export.variants.quantize import quantize
from python_backends.runtime.execution import Array
from tests.unit.python_backends.export.tiny_bert import HEADS, HIDDEN_SIZE, LAYERS, NEURONS, SHAPE, tiny_weights, token_lists

HEAD_SIZE = HIDDEN_SIZE // HEADS
OUTPUTS = 5


def embedding(weights: Weights, *, seed: int = 1) -> Array:
    row = np.array([token_lists(1, seed=seed)[0]])
    return embed_with_onnxruntime(bert_graph(weights, SHAPE, fused=True))(row, np.ones_like(row))


def linear_and_inputs(*, inputs: int = 12, seed: int = 0) -> tuple[Array, Array, Array]:
    """A layer's weight and bias, and 500 inputs that depend on each other."""
    draw = np.random.default_rng(seed)
    weight, bias, mixing = (draw.standard_normal(shape).astype(np.float32) for shape in ((OUTPUTS, inputs), OUTPUTS, (inputs, inputs)))
    return weight, bias, draw.standard_normal((500, inputs)).astype(np.float32) @ mixing + 3


def test_sizes_are_those_asked_for() -> None:
    pruned = prune(tiny_weights(), SHAPE, token_lists(20), keep_neurons=0.5, keep_heads=3)
    for layer in range(LAYERS):
        name = layer_name(layer)
        for part in ("query", "key", "value"):
            assert pruned[f"{name}.attention.self.{part}.weight"].shape == (3 * HEAD_SIZE, HIDDEN_SIZE)
            assert pruned[f"{name}.attention.self.{part}.bias"].shape == (3 * HEAD_SIZE,)
        assert pruned[f"{name}.attention.output.dense.weight"].shape == (HIDDEN_SIZE, 3 * HEAD_SIZE)
        assert pruned[f"{name}.intermediate.dense.weight"].shape == (NEURONS // 2, HIDDEN_SIZE)
        assert pruned[f"{name}.output.dense.weight"].shape == (HIDDEN_SIZE, NEURONS // 2)


def test_taking_out_nothing_changes_nothing_and_the_original_is_left_alone() -> None:
    weights, before = tiny_weights(), tiny_weights()
    same = prune(weights, SHAPE, token_lists(20), keep_neurons=1.0, keep_heads=HEADS)
    prune(weights, SHAPE, token_lists(20), keep_neurons=0.5, keep_heads=2)
    assert weights.keys() == before.keys()
    assert all(np.array_equal(values, before[name]) for name, values in weights.items())
    np.testing.assert_allclose(embedding(same), embedding(weights), atol=1e-6)


def test_it_is_the_same_every_time() -> None:
    one, other = (prune(tiny_weights(), SHAPE, token_lists(20), keep_neurons=0.5, keep_heads=3) for _ in range(2))
    assert all(np.array_equal(values, other[name]) for name, values in one.items())


def test_neurons_that_say_nothing_go_first() -> None:
    weights = tiny_weights()
    for layer in range(LAYERS):
        weights[f"{layer_name(layer)}.output.dense.weight"][:, ::2] = 0
    pruned = prune(weights, SHAPE, token_lists(40), keep_neurons=0.5, keep_heads=HEADS)
    np.testing.assert_allclose(embedding(pruned, seed=5), embedding(weights, seed=5), atol=1e-4)


def test_what_the_others_say_too_can_go_for_nothing() -> None:
    weight, bias, x = linear_and_inputs()
    x[:, 7] = 2 * x[:, 1] - x[:, 4] + 1
    expected = x @ weight.T + bias
    smaller = remove_inputs(weight, bias, moments_of(x), keep=11, group=1)
    assert not {1, 4, 7} <= set(smaller.stay.tolist())
    # The ridge keeps it from being exact.
    found = x[:, smaller.stay] @ smaller.weight.T + smaller.bias
    assert np.square(found - expected).mean() < 1e-3 * expected.var()


@pytest.mark.parametrize("group", [pytest.param(1, id="neurons"), pytest.param(3, id="heads")])
def test_what_is_left_is_fitted_by_least_squares(group: int) -> None:
    weight, bias, x = linear_and_inputs()
    expected = x @ weight.T + bias
    smaller = remove_inputs(weight, bias, moments_of(x), keep=6 // group, group=group)
    kept = x[:, smaller.stay]
    repaired = kept @ smaller.weight.T + smaller.bias
    best = np.hstack([kept, np.ones((len(kept), 1))])
    optimum = best @ np.linalg.lstsq(best, expected, rcond=None)[0]
    errors = [float(np.square(output - expected).mean()) for output in (repaired, optimum)]
    assert errors[0] == pytest.approx(errors[1], rel=0.05)
    kept_only = kept @ weight[:, smaller.stay].T
    assert errors[0] < float(np.square(kept_only - kept_only.mean(0) + expected.mean(0) - expected).mean())


def test_heads_leave_whole() -> None:
    weight, bias, x = linear_and_inputs()
    stay = remove_inputs(weight, bias, moments_of(x), keep=2, group=4).stay.reshape(2, 4)
    assert (stay[:, 0] % 4 == 0).all()
    assert (stay == stay[:, :1] + np.arange(4)).all()


@pytest.mark.parametrize("keep_heads", [HEADS, HEADS - 1])
def test_it_can_be_quantised(keep_heads: int) -> None:
    pruned = prune(tiny_weights(), SHAPE, token_lists(20), keep_neurons=0.5, keep_heads=keep_heads)
    quantized = quantize(bert_graph(pruned, SHAPE, fused=True), token_lists(20))
    row = np.array([token_lists(1)[0]])
    assert (embed_with_onnxruntime(quantized)(row, np.ones_like(row)) * embedding(pruned)).sum() > 0.99
