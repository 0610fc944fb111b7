from __future__ import annotations

import sys

import pytest

from control_plane.batches.domain.batch import Chunk, Chunks


def test_chunks_come_out_as_they_went_in() -> None:
    most = 2**62
    made = [Chunk(32, 0, 4000), Chunk(32, 4000, most), Chunk(1, most, most + 9)]
    chunks = Chunks(made)
    assert list(chunks) == made
    assert (len(chunks), chunks.lines, chunks[2]) == (3, 65, made[2])
    assert chunks == Chunks(iter(made))
    assert chunks != Chunks(made[:2])
    assert list(Chunks([])) == []


def test_the_largest_batch_takes_some_ten_thousand_bytes() -> None:
    chunks = Chunks(Chunk(32, 40_000 * number, 40_000 * (number + 1)) for number in range(50_000 // 32 + 1))
    assert sys.getsizeof(chunks) + sys.getsizeof(chunks._numbers) < 50_000


@pytest.mark.parametrize("number", [-1, 1])
def test_a_chunk_that_there_is_not_is_an_error(number: int) -> None:
    with pytest.raises(IndexError):
        Chunks([Chunk(1, 0, 4)])[number]
