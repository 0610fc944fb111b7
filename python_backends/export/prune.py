"""A smaller BERT: whole neurons and attention heads are taken out, and the layer that read them is fitted again to the calibration texts.

This is the optimal brain surgeon (Hassibi and Stork 1993) on groups of a linear layer's inputs, as in ZipLM (Kurtic et al. 2023): the group
goes whose absence costs least once the others have taken over what they can. The result is an ordinary BertModel.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from python_backends.export.sentence_encoder import SentenceEncoder

SOURCE = Path(__file__)

# Of the inputs' mean variance, added to each: keeps the inverse finite where calibration texts are few.
RIDGE = 1e-3

# One in so many goes between two looks at what each costs; one by one is exact and takes a hundred times as long.
GROUPS_PER_ROUND = 24


@dataclass(frozen=True, slots=True)
class Moments:
    """Of the inputs that a linear layer has seen: `mean` [channels] and `covariance` [channels, channels], FP64."""

    mean: Tensor
    covariance: Tensor


def moments_of(x: Tensor) -> Moments:
    """Of inputs [tokens, channels] FP32."""
    mean = x.mean(dim=0)
    centred = x - mean
    return Moments(mean.double(), (centred.T @ centred).double() / len(x))


def prune(
    encoder: SentenceEncoder, calibration: Sequence[Sequence[int]], *, keep_neurons: float, keep_heads: int, max_tokens: int = 6000
) -> SentenceEncoder:
    """A new encoder with this part of each layer's feed-forward neurons and this many of its heads.

    `calibration` are the token ids of texts, of which about `max_tokens` are read: a few times the neurons of a layer are enough.
    """
    pruned = copy.deepcopy(encoder)
    layers = pruned.bert.encoder.layer
    projections = [linear for layer in layers for linear in (layer.attention.output.dense, layer.output.dense)]
    moments = _observe(pruned, projections, _sample(calibration, max_tokens))
    for layer in layers:
        attention, feed_forward = layer.attention, layer.intermediate.dense
        size = attention.self.attention_head_size
        heads = remove_inputs(attention.output.dense, moments[attention.output.dense], keep=keep_heads, group=size)
        for linear in (attention.self.query, attention.self.key, attention.self.value):
            _keep_outputs(linear, heads)
        attention.self.num_attention_heads, attention.self.all_head_size = keep_heads, keep_heads * size
        neurons = remove_inputs(
            layer.output.dense, moments[layer.output.dense], keep=round(keep_neurons * feed_forward.out_features), group=1
        )
        _keep_outputs(feed_forward, neurons)
    return pruned


def remove_inputs(linear: nn.Linear, moments: Moments, *, keep: int, group: int) -> Tensor:
    """Take groups of consecutive inputs out of a linear layer until `keep` are left; returns the indices of the inputs that stay."""
    covariance = moments.covariance
    ridge = RIDGE * covariance.diagonal().mean()
    inverse = torch.linalg.inv(covariance + ridge * torch.eye(len(covariance), dtype=torch.float64))
    weight = linear.weight.detach().double().T.clone()
    output_mean = moments.mean @ weight
    left = torch.arange(len(weight)).reshape(-1, group)
    while len(left) > keep:
        # Only as many at once as hardly make up for each other.
        count = min(len(left) - keep, max(1, len(left) // GROUPS_PER_ROUND))
        order = torch.argsort(_costs(weight, inverse, left), stable=True)
        gone, left = left[order[:count]].flatten(), left[order[count:].sort().values]
        # What the others can give instead of these, by least squares.
        share = inverse[:, gone] @ torch.linalg.inv(inverse[gone][:, gone])
        weight -= share @ weight[gone]
        inverse -= share @ inverse[gone]
    stay = left.flatten()
    with torch.no_grad():
        linear.bias += (output_mean - moments.mean[stay] @ weight[stay]).float()
        linear.weight = nn.Parameter(weight[stay].T.float().contiguous())
    linear.in_features = len(stay)
    return stay


def _costs(weight: Tensor, inverse: Tensor, groups: Tensor) -> Tensor:
    """The squared error of the output that the absence of each group adds, when the others are fitted again."""
    blocks = inverse[groups.unsqueeze(2), groups.unsqueeze(1)]
    rows = weight[groups]
    return (rows * torch.linalg.solve(blocks, rows)).sum(dim=(1, 2))


def _keep_outputs(linear: nn.Linear, indices: Tensor) -> None:
    with torch.no_grad():
        linear.weight, linear.bias = nn.Parameter(linear.weight[indices]), nn.Parameter(linear.bias[indices])
    linear.out_features = len(indices)


def _sample(calibration: Sequence[Sequence[int]], max_tokens: int) -> Sequence[Sequence[int]]:
    """Every so manieth text."""
    return calibration[:: -(-sum(map(len, calibration)) // max_tokens)]


def _observe(encoder: SentenceEncoder, linears: Sequence[nn.Linear], calibration: Sequence[Sequence[int]]) -> dict[nn.Linear, Moments]:
    """What each of these layers gets to see when the encoder reads these texts."""
    seen: dict[nn.Linear, list[Tensor]] = {linear: [] for linear in linears}

    def keep(linear: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen[linear].append(inputs[0].flatten(0, 1))

    with ExitStack() as hooks, torch.no_grad():
        for linear in linears:
            hooks.callback(linear.register_forward_pre_hook(keep).remove)
        for ids in calibration:
            row = torch.tensor([ids])
            encoder(row, torch.ones_like(row))
    return {linear: moments_of(torch.cat(rows)) for linear, rows in seen.items()}
