"""BERT sentence encoder in PyTorch: the reference for `bert_graph.py`, and the source of PyTorch's variants.

Pooling and normalisation are part of it. transformers has the rest; sentence-transformers is not needed.
"""

from __future__ import annotations

import json

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from python_backends.export.encoders.bert_graph import UNUSED_WEIGHTS
from python_backends.export.encoders.embedding import Embed
from python_backends.export.recipe import BuildError
from python_backends.runtime.execution import Array


class SentenceEncoder(nn.Module):
    """Sentence encoder: token ids and attention mask INT64 [batch, length] -> unit vectors FP32 [batch, hidden
    size]."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode; a position whose mask is 0 has no influence."""
        hidden = self.bert(
            input_ids=input_ids,
            attention_mask=attention_mask,
            # One segment always: baked in, so that callers need not send zeros.
            token_type_ids=torch.zeros_like(input_ids),
        ).last_hidden_state
        # The sum points where the mean does, and the length is lost to normalisation.
        total = (attention_mask.unsqueeze(1).to(hidden.dtype) @ hidden).squeeze(1)
        # 1e-12 guards against an empty mask, as `nn.functional.normalize` does, but without its copies of the divisor.
        return total / total.norm(dim=1, keepdim=True).clamp(min=1e-12)


def load_sentence_encoder(safetensors: bytes, config: bytes) -> SentenceEncoder:
    """The encoder in eval mode.

    Raises:
        BuildError: The weights do not belong to the configuration.
    """
    bert = BertModel(BertConfig(**json.loads(config), attn_implementation="eager"), add_pooling_layer=False)
    keys = bert.load_state_dict(load(safetensors), strict=False)
    if keys.missing_keys or set(keys.unexpected_keys) - UNUSED_WEIGHTS:
        raise BuildError(f"the weights do not fit the model: missing {keys.missing_keys}, unexpected {keys.unexpected_keys}")
    encoder = SentenceEncoder(bert)
    encoder.eval()
    return encoder


def embed_with_torch(encoder: SentenceEncoder) -> Embed:
    """The encoder as a function of NumPy arrays."""

    def embed(input_ids: Array, attention_mask: Array) -> Array:
        with torch.no_grad():
            embedding: Tensor = encoder(torch.from_numpy(input_ids), torch.from_numpy(attention_mask))
        return np.asarray(embedding)

    return embed
