"""A BERT sentence encoder of a few thousand weights, and the same in NumPy: what every runtime is held to."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import BertConfig, BertModel

from python_backends.export.encoders.bert_graph import BertShape, bert_graph
from python_backends.export.encoders.sentence_encoder import SentenceEncoder
from python_backends.runtime.execution import Array

VOCABULARY, HIDDEN, LAYERS, HEADS, LONGEST = 2010, 16, 1, 2, 40

Floats = NDArray[np.float64]


def encoder() -> SentenceEncoder:
    """Make weights that are always the same, and large enough for attention to matter."""
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=24,
        max_position_embeddings=LONGEST,
        initializer_range=0.5,
        attn_implementation="eager",
    )
    # Its own generator: the global one is not this module's to seed.
    with torch.random.fork_rng():
        torch.manual_seed(5)
        tiny = SentenceEncoder(BertModel(config, add_pooling_layer=False))
    tiny.eval()
    return tiny


def weights_of(source: SentenceEncoder) -> dict[str, Array]:
    """As a checkpoint has them."""
    return {name: tensor.detach().numpy() for name, tensor in source.bert.state_dict().items()}


def onnx_of(source: SentenceEncoder) -> bytes:
    """In operators of the ONNX standard."""
    return bert_graph(weights_of(source), BertShape.of(source.bert.config.to_dict()), fused=False)


def texts(batch: int, length: int, *, seed: int = 0) -> dict[str, NDArray[np.int64]]:
    """Token ids and a mask of `batch` rows, of lengths from `length` down."""
    ids = np.random.default_rng(seed).integers(0, VOCABULARY, (batch, length))
    lengths = np.maximum(1, length - np.arange(batch))
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    return {"INPUT_IDS": ids * mask, "ATTENTION_MASK": mask}


class NumpyEncoder:
    """The encoder as the paper writes it, in double precision."""

    def __init__(self, source: SentenceEncoder) -> None:
        self._weights = {name: tensor.detach().double().numpy() for name, tensor in source.bert.state_dict().items()}

    def __call__(self, inputs: dict[str, Any]) -> Floats:
        """Unit vectors [batch, HIDDEN]."""
        ids, mask = inputs["INPUT_IDS"], inputs["ATTENTION_MASK"]
        positions = self._weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        segment = self._weights["embeddings.token_type_embeddings.weight"][0]
        hidden = self._norm("embeddings.LayerNorm", self._weights["embeddings.word_embeddings.weight"][ids] + positions + segment)
        for layer in range(LAYERS):
            hidden = self._layer(f"encoder.layer.{layer}", hidden, mask)
        mean = (hidden * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)

    def _layer(self, name: str, hidden: Floats, mask: NDArray[np.int64]) -> Floats:
        attended = self._linear(f"{name}.attention.output.dense", self._attention(f"{name}.attention.self", hidden, mask))
        hidden = self._norm(f"{name}.attention.output.LayerNorm", attended + hidden)
        inner = torch.nn.functional.gelu(torch.from_numpy(self._linear(f"{name}.intermediate.dense", hidden))).numpy()
        return self._norm(f"{name}.output.LayerNorm", self._linear(f"{name}.output.dense", inner) + hidden)

    def _attention(self, name: str, hidden: Floats, mask: NDArray[np.int64]) -> Floats:
        batch, length, _ = hidden.shape
        heads = (batch, length, HEADS, HIDDEN // HEADS)
        query, key, value = (self._linear(f"{name}.{part}", hidden).reshape(heads) for part in ("query", "key", "value"))
        scores = np.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(HIDDEN // HEADS)
        scores = np.where(mask[:, None, None, :] == 1, scores, -1e30)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.einsum("bhqk,bkhd->bqhd", weights, value).reshape(hidden.shape)

    def _linear(self, name: str, x: Floats) -> Floats:
        return x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, name: str, x: Floats) -> Floats:
        centred = x - x.mean(axis=-1, keepdims=True)
        scale = np.sqrt(centred.var(axis=-1, keepdims=True) + 1e-12)
        return centred / scale * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
