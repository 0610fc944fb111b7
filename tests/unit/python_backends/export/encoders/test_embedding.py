"""Embedding texts: which run together, and in which order they come back."""

from __future__ import annotations

import numpy as np

from python_backends.export.encoders.embedding import embed_by_length, embed_padded

TOKEN_IDS = [[1, 2], [3], [4, 5, 6, 7], [8], [9, 10]]


class Recorder:
    """Embed a sequence as (sum of its unmasked ids, their number), and record the shapes."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, input_ids: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
        assert input_ids.dtype == attention_mask.dtype == np.int64
        self.shapes.append(input_ids.shape)
        return np.stack([(input_ids * attention_mask).sum(axis=1), attention_mask.sum(axis=1)], axis=1).astype(np.float32)


EXPECTED = [[sum(ids), len(ids)] for ids in TOKEN_IDS]


def test_by_length_runs_equal_ones_together_and_keeps_their_order() -> None:
    embed = Recorder()

    assert embed_by_length(embed, [*TOKEN_IDS, [11], [12]], batch_size=3).tolist() == [*EXPECTED, [11, 1], [12, 1]]
    assert embed.shapes == [(2, 2), (3, 1), (1, 1), (1, 4)]


def test_padded_runs_neighbours_together() -> None:
    embed = Recorder()

    assert embed_padded(embed, TOKEN_IDS, batch_size=3).tolist() == EXPECTED
    assert embed.shapes == [(3, 4), (2, 2)]
