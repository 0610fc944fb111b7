"""Measuring embeddings against their reference."""

from __future__ import annotations

import numpy as np
import pytest

from python_backends.export.agreement import embed_by_length, embed_one_by_one, embed_padded, require_agreement
from python_backends.export.recipe import BuildError

TOKEN_IDS = [[1, 2], [3], [4, 5, 6, 7], [8], [9, 10]]


class Recorder:
    """Embeds a sequence as (sum of its unmasked ids, their number), remembering the shapes it was given."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, input_ids: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
        assert input_ids.dtype == attention_mask.dtype == np.int64
        self.shapes.append(input_ids.shape)
        return np.stack([(input_ids * attention_mask).sum(axis=1), attention_mask.sum(axis=1)], axis=1).astype(np.float32)


EXPECTED = [[sum(ids), len(ids)] for ids in TOKEN_IDS]


def test_one_by_one_runs_each_alone_and_unpadded() -> None:
    embed = Recorder()

    assert embed_one_by_one(embed, TOKEN_IDS).tolist() == EXPECTED
    assert embed.shapes == [(1, 2), (1, 1), (1, 4), (1, 1), (1, 2)]


def test_by_length_runs_equal_ones_together_and_keeps_their_order() -> None:
    embed = Recorder()

    assert embed_by_length(embed, [*TOKEN_IDS, [11], [12]], batch_size=3).tolist() == [*EXPECTED, [11, 1], [12, 1]]
    assert embed.shapes == [(2, 2), (3, 1), (1, 1), (1, 4)]


def test_padded_runs_neighbours_together() -> None:
    embed = Recorder()

    assert embed_padded(embed, TOKEN_IDS, batch_size=3).tolist() == EXPECTED
    assert embed.shapes == [(3, 4), (2, 2)]


def test_agreement_is_the_worst_and_the_mean_cosine() -> None:
    reference = np.float32([[1, 0], [0, 2]])
    candidate = np.float32([[3, 0], [3, 4]])

    assert require_agreement("it", reference, candidate, minimum=0.5) == {"cosine_min": 0.8, "cosine_mean": 0.9}


def test_too_little_agreement_names_the_sentence_and_the_limit() -> None:
    with pytest.raises(BuildError, match=r"it: the cosine of sentence 2 is 0\.800000, below 0\.9999: nothing is published"):
        require_agreement("it", np.float32([[1, 0], [0, 2]]), np.float32([[3, 0], [3, 4]]), minimum=0.9999)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("broken", [np.nan, 0.0])
def test_no_number_is_no_agreement(broken: float) -> None:
    with pytest.raises(BuildError, match="the cosine of sentence 1 is nan"):
        require_agreement("it", np.ones((2, 2)), np.array([[broken, broken], [1, 1]]), minimum=0.5)
