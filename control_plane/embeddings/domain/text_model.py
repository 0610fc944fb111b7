"""Models that turn texts into embeddings, as far as callers need to know them who know no tensors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """The inputs of a model that also takes what a tokenizer has made of a text: both INT64 [batch, length]."""

    ids: str
    mask: str


@dataclass(frozen=True, slots=True)
class TextModel:
    """One input BYTES [1], for a text, one output FP32 [dimensions], for its embedding; names of tensors."""

    text: str
    embedding: str
    dimensions: int
    tokens: str | None = None
    """The output INT32 [1] that says of how many tokens a text is, where there is one."""
    token_inputs: TokenInputs | None = None
    max_batch_size: int = 0
    """0: it has no batch dimension, and takes one text at a time."""
