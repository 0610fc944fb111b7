"""Structured pruning: what stays, what the repair makes up for, and that the original is left alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from python_backends.export.fuse import fuse_bert
from python_backends.export.prune import moments_of, prune, remove_inputs
from python_backends.export.quantize import quantize
from python_backends.export.sentence_encoder import embed_with_onnxruntime, embed_with_torch, export_to_onnx
from tests.unit.python_backends.export.tiny_bert import HEADS, HIDDEN_SIZE, NEURONS, tiny_encoder, token_lists

HEAD_SIZE = HIDDEN_SIZE // HEADS


def linear_and_inputs(*, inputs: int = 12, seed: int = 0) -> tuple[nn.Linear, Tensor]:
    """A layer and 500 inputs that depend on each other."""
    torch.manual_seed(seed)
    return nn.Linear(inputs, 5), torch.randn(500, inputs) @ torch.randn(inputs, inputs) + 3


def test_sizes_are_those_asked_for() -> None:
    pruned = prune(tiny_encoder(), token_lists(20), keep_neurons=0.5, keep_heads=3)
    for layer in pruned.bert.encoder.layer:
        attention = layer.attention
        assert attention.self.query.weight.shape == attention.self.value.weight.shape == (3 * HEAD_SIZE, HIDDEN_SIZE)
        assert attention.self.num_attention_heads == 3
        assert attention.output.dense.weight.shape == (HIDDEN_SIZE, 3 * HEAD_SIZE)
        assert layer.intermediate.dense.weight.shape == (NEURONS // 2, HIDDEN_SIZE)
        assert layer.output.dense.weight.shape == (HIDDEN_SIZE, NEURONS // 2)


def test_taking_out_nothing_changes_nothing_and_the_original_is_left_alone() -> None:
    encoder = tiny_encoder()
    before = {name: values.clone() for name, values in encoder.state_dict().items()}
    same = prune(encoder, token_lists(20), keep_neurons=1.0, keep_heads=HEADS)
    prune(encoder, token_lists(20), keep_neurons=0.5, keep_heads=2)
    row = np.array([token_lists(1)[0]])
    assert {name: values.shape for name, values in encoder.state_dict().items()} == {name: values.shape for name, values in before.items()}
    assert all(torch.equal(values, before[name]) for name, values in encoder.state_dict().items())
    np.testing.assert_allclose(embed_with_torch(same)(row, np.ones_like(row)), embed_with_torch(encoder)(row, np.ones_like(row)), atol=1e-6)


def test_it_is_the_same_every_time() -> None:
    one, other = (prune(tiny_encoder(), token_lists(20), keep_neurons=0.5, keep_heads=3).state_dict() for _ in range(2))
    assert all(torch.equal(values, other[name]) for name, values in one.items())


def test_neurons_that_say_nothing_go_first() -> None:
    encoder = tiny_encoder()
    silent = torch.arange(0, NEURONS, 2)
    with torch.no_grad():
        for layer in encoder.bert.encoder.layer:
            layer.output.dense.weight[:, silent] = 0
    pruned = prune(encoder, token_lists(40), keep_neurons=0.5, keep_heads=HEADS)
    row = np.array([token_lists(1, seed=5)[0]])
    np.testing.assert_allclose(
        embed_with_torch(pruned)(row, np.ones_like(row)), embed_with_torch(encoder)(row, np.ones_like(row)), atol=1e-4
    )


def test_what_the_others_say_too_can_go_for_nothing() -> None:
    linear, x = linear_and_inputs()
    x[:, 7] = 2 * x[:, 1] - x[:, 4] + 1
    expected = linear(x).detach()
    stay = remove_inputs(linear, moments_of(x), keep=11, group=1)
    assert not {1, 4, 7} <= set(stay.tolist())
    # The ridge keeps it from being exact.
    assert (linear(x[:, stay]) - expected).pow(2).mean() < 1e-3 * expected.var()


@pytest.mark.parametrize("group", [pytest.param(1, id="neurons"), pytest.param(3, id="heads")])
def test_what_is_left_is_fitted_by_least_squares(group: int) -> None:
    linear, x = linear_and_inputs()
    expected = linear(x).detach()
    unrepaired = linear.weight.detach().clone()
    stay = remove_inputs(linear, moments_of(x), keep=6 // group, group=group)
    repaired = linear(x[:, stay]).detach()
    best = nn.functional.pad(x[:, stay], (0, 1), value=1.0)
    optimum = best @ torch.linalg.lstsq(best, expected).solution
    errors = [float((output - expected).pow(2).mean()) for output in (repaired, optimum)]
    assert errors[0] == pytest.approx(errors[1], rel=0.05)
    kept_only = x[:, stay] @ unrepaired[:, stay].T
    assert errors[0] < float((kept_only - kept_only.mean(0) + expected.mean(0) - expected).pow(2).mean())


def test_heads_leave_whole() -> None:
    linear, x = linear_and_inputs()
    stay = remove_inputs(linear, moments_of(x), keep=2, group=4).reshape(2, 4)
    assert (stay[:, 0] % 4 == 0).all()
    assert (stay == stay[:, :1] + torch.arange(4)).all()


@pytest.mark.parametrize("keep_heads", [HEADS, HEADS - 1])
def test_it_can_be_exported_fused_and_quantised(keep_heads: int) -> None:
    pruned = prune(tiny_encoder(), token_lists(20), keep_neurons=0.5, keep_heads=keep_heads)
    fused = fuse_bert(export_to_onnx(pruned, opset=17), heads=HEADS, hidden_size=HIDDEN_SIZE)
    quantized = quantize(fused, token_lists(20))
    row = np.array([token_lists(1)[0]])
    expected = embed_with_torch(pruned)(row, np.ones_like(row))
    np.testing.assert_allclose(embed_with_onnxruntime(fused)(row, np.ones_like(row)), expected, atol=1e-5)
    assert (embed_with_onnxruntime(quantized)(row, np.ones_like(row)) * expected).sum() > 0.99
