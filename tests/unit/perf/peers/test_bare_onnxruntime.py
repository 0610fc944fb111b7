"""Batches are of one length each and hold every sequence once."""

from __future__ import annotations

from collections import Counter

import pytest

from perf.peers.bare_onnxruntime import batches


@pytest.mark.parametrize("size", [1, 2, 3, 32])
def test_batches(size: int) -> None:
    sequences = [[number] * length for number, length in enumerate([3, 5, 3, 3, 7, 5, 3])]
    made = batches(sequences, size)
    assert max(map(len, made)) == min(size, 4)
    assert Counter(tuple(row) for batch in made for row in batch.tolist()) == Counter(map(tuple, sequences))
