"""Linear layers of FP32 weights whose outputs a CPU's threads divide among them.

PyTorch's own product divides the rows, so each thread reads all weights: on two Zen 3 cores eight rows took twice the CPU time that
they take on one, and so did the step of eight sequences.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def divide_outputs(model: nn.Module) -> None:
    """Replace every linear layer of a model in place; its weights stay where they are."""
    for module in [*model.modules()]:
        for name, child in [*module.named_children()]:
            if isinstance(child, nn.Linear):
                setattr(module, name, _DividedLinear(child))


class _DividedLinear(nn.Module):
    """Replacement of a linear layer."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Multiply [..., inputs] FP32 with the weights: [..., outputs] FP32."""
        rows = inputs.reshape(-1, inputs.shape[-1])
        if len(rows) == 1:
            return functional.linear(inputs, self.weight, self.bias)
        outputs = torch.mm(self.weight, rows.t()).t().contiguous().view(*inputs.shape[:-1], -1)
        return outputs if self.bias is None else outputs + self.bias
