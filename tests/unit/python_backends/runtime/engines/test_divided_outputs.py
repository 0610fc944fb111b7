"""Layers whose outputs are divided give what PyTorch's give, on the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from python_backends.runtime.engines.causal_lm import load_causal_lm
from python_backends.runtime.engines.divided_outputs import divide_outputs


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (1, 8), (2, 3)])
def test_it_gives_what_pytorch_gives(bias: bool, shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    layer = nn.Linear(16, 5, bias=bias)
    model = nn.Sequential(layer)
    divide_outputs(model)
    inputs = torch.randn(*shape, 16)

    with torch.inference_mode():
        torch.testing.assert_close(model(inputs), layer(inputs))
    assert model[0] is not layer
    assert model[0].weight is layer.weight


def test_a_language_model_on_a_cpu_has_them(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, tie_word_embeddings=True
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = load_causal_lm(tmp_path, weights="fp32", kind="CPU", device_id=0)._model

    assert [name for name, module in model.named_modules() if isinstance(module, nn.Linear)] == []
    assert model.lm_head.weight is model.model.embed_tokens.weight
