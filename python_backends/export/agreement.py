"""Compare embeddings with their reference: how alike they are, and whether that is good enough to be served."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from python_backends.export.recipe import BuildError
from python_backends.runtime.execution import Array
from python_backends.text_encoder.padding import pad_and_concatenate

Embed = Callable[[Array, Array], Array]
"""Token ids and attention mask, both INT64 [batch, length] -> embeddings FP32 [batch, dimensions]."""


def embed_one_by_one(embed: Embed, token_ids: Sequence[Sequence[int]]) -> Array:
    """Embeddings [sentences, dimensions], each sentence run alone and without padding."""
    rows = [np.array([ids], dtype=np.int64) for ids in token_ids]
    return np.concatenate([embed(row, np.ones_like(row)) for row in rows])


def embed_by_length(embed: Embed, token_ids: Sequence[Sequence[int]], *, batch_size: int) -> Array:
    """The same without padding in fewer runs: up to `batch_size` sentences of one length at a time."""
    indices: dict[int, list[int]] = {}
    for index, ids in enumerate(token_ids):
        indices.setdefault(len(ids), []).append(index)
    groups = [alike[start : start + batch_size] for alike in indices.values() for start in range(0, len(alike), batch_size)]
    rows = [np.array([token_ids[index] for index in group], dtype=np.int64) for group in groups]
    embeddings = np.concatenate([embed(row, np.ones_like(row)) for row in rows])
    order: Array = np.argsort([index for group in groups for index in group])
    return embeddings[order]


def embed_padded(embed: Embed, token_ids: Sequence[Sequence[int]], *, batch_size: int) -> Array:
    """Embeddings [sentences, dimensions], run in padded batches of neighbours, which mixes lengths as serving does."""
    rows = [np.array([ids], dtype=np.int64) for ids in token_ids]
    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    return np.concatenate(
        [embed(pad_and_concatenate(batch), pad_and_concatenate([np.ones_like(row) for row in batch])) for batch in batches]
    )


def require_agreement(what: str, reference: Array, candidate: Array, *, minimum: float) -> dict[str, float]:
    """The cosines between rows of two [sentences, dimensions], as `cosine_min` and `cosine_mean`.

    Raises:
        BuildError: One is below `minimum`, or not a number.
    """
    norms = np.linalg.norm(reference, axis=1) * np.linalg.norm(candidate, axis=1)
    # FP32 rounding is of the order of what is measured here.
    cosines = np.einsum("ij,ij->i", reference.astype(np.float64), candidate.astype(np.float64)) / norms
    worst = int(np.argmin(cosines))
    if not cosines[worst] >= minimum:
        raise BuildError(f"{what}: the cosine of sentence {worst + 1} is {cosines[worst]:.6f}, below {minimum}: nothing is published")
    return {"cosine_min": round(float(cosines[worst]), 7), "cosine_mean": round(float(cosines.mean()), 7)}
