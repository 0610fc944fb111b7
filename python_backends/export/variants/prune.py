"""Structured pruning of BERT: removes neurons and attention heads, and fits the layer that reads them again
to calibration texts.

This is the optimal brain surgeon (Hassibi and Stork 1993) on groups of a linear layer's inputs, as in ZipLM (Kurtic et al. 2023): the group
goes whose absence costs least once the others have taken over what they can. The result is an ordinary BERT's weights, narrower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from python_backends.export.encoders.bert_graph import BertShape, Weights, activated, attended, bert_graph, layer_name
from python_backends.export.variants.observe import observed
from python_backends.runtime.execution import Array

# Of the inputs' mean variance, added to each: keeps the inverse finite where calibration texts are few.
RIDGE = 1e-3

# One in so many goes between two looks at what each costs; one by one is exact and takes a hundred times as long.
GROUPS_PER_ROUND = 24


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of a linear layer's inputs: `mean` [channels] and `covariance` [channels, channels], FP64."""

    mean: Array
    covariance: Array


@dataclass(frozen=True, slots=True)
class Smaller:
    """Linear layer that kept the inputs `stay` (indices); `weight` FP32 [outputs, inputs], as in checkpoints."""

    weight: Array
    bias: Array
    stay: Array


def moments_of(x: Array) -> Moments:
    """Compute the moments of inputs [tokens, channels] FP32."""
    mean = x.mean(axis=0, dtype=np.float64)
    centred = x - mean.astype(np.float32)
    return Moments(mean, (centred.T @ centred).astype(np.float64) / len(x))


def prune(
    weights: Weights,
    shape: BertShape,
    calibration: Sequence[Sequence[int]],
    *,
    keep_neurons: float,
    keep_heads: int,
    max_tokens: int = 6000,
) -> dict[str, Array]:
    """Return weights with this part of each layer's feed-forward neurons and this many of its heads.

    `calibration` are the token ids of texts, of which about `max_tokens` tokens are read: a few times the neurons of a layer are enough.
    """
    names = [name(layer) for layer in range(shape.layers) for name in (attended, activated)]
    seen = observed(bert_graph(weights, shape, fused=True), names, calibration, max_tokens=max_tokens)
    pruned = dict(weights)
    for layer in range(shape.layers):
        attention, feed_forward = f"{layer_name(layer)}.attention", f"{layer_name(layer)}.intermediate.dense"
        narrowed = [f"{attention}.self.{part}" for part in ("query", "key", "value")]
        _narrow(pruned, f"{attention}.output.dense", narrowed, moments_of(seen[attended(layer)]), keep=keep_heads, group=shape.head_size)
        neurons = round(keep_neurons * len(weights[f"{feed_forward}.bias"]))
        _narrow(pruned, f"{layer_name(layer)}.output.dense", [feed_forward], moments_of(seen[activated(layer)]), keep=neurons, group=1)
    return pruned


def _narrow(pruned: dict[str, Array], reader: str, written_by: Sequence[str], moments: Moments, *, keep: int, group: int) -> None:
    """Remove inputs of the layer `reader`, and the outputs of the layers before it that they were."""
    smaller = remove_inputs(pruned[f"{reader}.weight"], pruned[f"{reader}.bias"], moments, keep=keep, group=group)
    pruned[f"{reader}.weight"], pruned[f"{reader}.bias"] = smaller.weight, smaller.bias
    for name in written_by:
        for part in ("weight", "bias"):
            pruned[f"{name}.{part}"] = pruned[f"{name}.{part}"][smaller.stay]


def remove_inputs(weight: Array, bias: Array, moments: Moments, *, keep: int, group: int) -> Smaller:
    """Remove groups of consecutive inputs of a linear layer, `weight` [outputs, inputs], until `keep` are left."""
    covariance = moments.covariance
    ridge = RIDGE * covariance.diagonal().mean()
    inverse = np.linalg.inv(covariance + ridge * np.eye(len(covariance)))
    rows = weight.T.astype(np.float64)
    output_mean = moments.mean @ rows
    left = np.arange(len(rows)).reshape(-1, group)
    while len(left) > keep:
        # Only as many at once as hardly make up for each other.
        count = min(len(left) - keep, max(1, len(left) // GROUPS_PER_ROUND))
        order = np.argsort(_costs(rows, inverse, left), kind="stable")
        gone, left = left[order[:count]].ravel(), left[np.sort(order[count:])]
        # What the others can give instead of these, by least squares.
        share = inverse[:, gone] @ np.linalg.inv(inverse[np.ix_(gone, gone)])
        rows -= share @ rows[gone]
        inverse -= share @ inverse[gone]
    stay = left.ravel()
    moved = (output_mean - moments.mean[stay] @ rows[stay]).astype(np.float32)
    return Smaller(rows[stay].T.astype(np.float32), bias + moved, stay)


def _costs(rows: Array, inverse: Array, groups: Array) -> Array:
    """Return the squared error that removing each group adds to the output once the others are fitted again."""
    blocks = inverse[groups[:, :, None], groups[:, None, :]]
    members = rows[groups]
    costs: Array = (members * np.linalg.solve(blocks, members)).sum(axis=(1, 2))
    return costs
