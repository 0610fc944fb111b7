"""A BERT of a few thousand weights whose layers matter, in PyTorch and as a checkpoint."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertModel

from python_backends.export.encoders.bert_graph import BertShape
from python_backends.export.encoders.sentence_encoder import SentenceEncoder
from python_backends.runtime.execution import Array

HEADS, HIDDEN_SIZE, NEURONS, LAYERS = 4, 32, 64, 2


def tiny_encoder(*, seed: int = 0) -> SentenceEncoder:
    """Make a random model in eval mode, in which every parameter differs from its default."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=50,
        hidden_size=HIDDEN_SIZE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=NEURONS,
        max_position_embeddings=32,
        attn_implementation="eager",
    )
    encoder = SentenceEncoder(BertModel(config, add_pooling_layer=False))
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            parameter.add_(torch.randn_like(parameter) * (0.15 if parameter.dim() > 1 else 0.3))
            assert parameter.abs().max() > 0, name
    return encoder.eval()


SHAPE = BertShape(LAYERS, HIDDEN_SIZE, HIDDEN_SIZE // HEADS, vocabulary=50, positions=32, epsilon=1e-12)


def tiny_weights(encoder: SentenceEncoder | None = None) -> dict[str, Array]:
    """Those of an encoder, by the names of a checkpoint."""
    state = (encoder or tiny_encoder()).bert.state_dict()
    return {name: values.detach().numpy().copy() for name, values in state.items()}


def token_lists(count: int, *, seed: int = 1) -> list[list[int]]:
    """Random texts of 3 to 20 tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 21, (count,), generator=generator).tolist()
    return [torch.randint(1, 50, (length,), generator=generator).tolist() for length in lengths]
