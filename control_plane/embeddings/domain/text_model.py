"""Descriptions of text-embedding models: the tensors that an embeddings call is translated to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """Input names of a model that also accepts tokens: token ids and attention mask, both INT64 [batch,
    length]."""

    ids: str
    mask: str


@dataclass(frozen=True, slots=True)
class TextModel:
    """Tensor names of a text-embedding model: input `text` is BYTES [1], output `embedding` is FP32
    [dimensions]."""

    text: str
    embedding: str
    dimensions: int
    tokens: str | None = None
    """Name of the output INT32 [1] with the number of tokens in the text; None where the model has none."""
    token_inputs: TokenInputs | None = None
    max_batch_size: int = 0
    """0: the model has no batch dimension and takes one text at a time."""
