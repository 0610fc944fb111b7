"""Embeds token sequences with a function of NumPy arrays: unpadded, or in padded batches like serving."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from python_backends.runtime.execution import Array
from python_backends.text_encoder.padding import pad_and_concatenate

Embed = Callable[[Array, Array], Array]
"""Token ids and attention mask, both INT64 [batch, length] -> embeddings FP32 [batch, dimensions]."""


def embed_with_onnxruntime(model: bytes) -> Embed:
    """Open an ONNX model from `bert_graph` as a function of NumPy arrays, on a CPU."""
    import onnxruntime as ort

    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]

    def embed(input_ids: Array, attention_mask: Array) -> Array:
        (embedding,) = session.run(None, dict(zip(names, (input_ids, attention_mask), strict=True)))
        return np.asarray(embedding)

    return embed


def embed_by_length(embed: Embed, token_ids: Sequence[Sequence[int]], *, batch_size: int) -> Array:
    """Compute embeddings [sentences, dimensions] without padding: up to `batch_size` sentences of equal
    length at a time.
    """
    indices: dict[int, list[int]] = {}
    for index, ids in enumerate(token_ids):
        indices.setdefault(len(ids), []).append(index)
    groups = [alike[start : start + batch_size] for alike in indices.values() for start in range(0, len(alike), batch_size)]
    rows = [np.array([token_ids[index] for index in group], dtype=np.int64) for group in groups]
    embeddings = np.concatenate([embed(row, np.ones_like(row)) for row in rows])
    order: Array = np.argsort([index for group in groups for index in group])
    return embeddings[order]


def embed_padded(embed: Embed, token_ids: Sequence[Sequence[int]], *, batch_size: int) -> Array:
    """Compute embeddings [sentences, dimensions] in padded batches of neighbours, which mixes lengths as
    serving does.
    """
    rows = [np.array([ids], dtype=np.int64) for ids in token_ids]
    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    return np.concatenate(
        [embed(pad_and_concatenate(batch), pad_and_concatenate([np.ones_like(row) for row in batch])) for batch in batches]
    )
