"""How long a variant takes for each (batch, length): the latency table that batching plans with and `auto` compares variants by.

All cells are measured in turn, round after round, so that a disturbance falls on all of them alike and no cell enjoys caches that only a
repeated shape has; each gets the median of its rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from python_backends.runtime.execution import Array

BATCHES = (1, 2, 4, 8, 16, 32, 64)
LENGTHS = (8, 16, 32, 64, 128, 256)

# Larger ones take a second each on two CPUs, and their cost is in proportion to their rows by then.
MOST_TOKENS = 4096

# Three rounds of the slowest variant on two CPUs take about 20 s; more rounds make the small cells steadier.
BUDGET_S = 15.0
FEWEST_ROUNDS, MOST_ROUNDS = 3, 25


def largest_cell() -> tuple[int, int]:
    """The measured (batch, length) of the most tokens, of the longest where several have as many."""
    return max(_cells(), key=lambda cell: (cell[0] * cell[1], cell[1]))


def latency_table(run: Callable[[int, int], object], *, threads: int, clock: Callable[[], float] = time.perf_counter) -> Mapping[str, Any]:
    """`latency_table` of a manifest: `ms[i][j]` for `batches[i]` and `lengths[j]`, rising along both.

    `run(batch, length)` is what is timed; once for each cell it is not, as its first time may compile or allocate.
    """
    for cell in _cells():
        run(*cell)
    seconds: dict[tuple[int, int], list[float]] = {cell: [] for cell in _cells()}
    started_s = clock()
    for number in range(MOST_ROUNDS):
        if number >= FEWEST_ROUNDS and (clock() - started_s) * (number + 1) / number > BUDGET_S:
            break
        for cell, samples in seconds.items():
            begun_s = clock()
            run(*cell)
            samples.append(clock() - begun_s)
    measured = {cell: 1000 * float(np.median(samples)) for cell, samples in seconds.items()}
    table = rising(_completed(measured))
    return {
        "threads": threads,
        "batches": [*BATCHES],
        "lengths": [*LENGTHS],
        "ms": [[round(ms, 4) for ms in row] for row in table.tolist()],
    }


def rising(table: Array) -> Array:
    """The table with its noise evened out until nothing falls along either axis: half-way between the least such table above it and the
    greatest one below, so that neither a slow nor a fast outlier is believed."""
    above = np.maximum.accumulate(np.maximum.accumulate(table, axis=0), axis=1)
    below = np.minimum.accumulate(np.minimum.accumulate(table[::-1, ::-1], axis=0), axis=1)[::-1, ::-1]
    evened: Array = (above + below) / 2
    return evened


def _completed(measured: Mapping[tuple[int, int], float]) -> Array:
    """What was not measured costs as much per token as the largest batch of that length that was."""
    table = np.zeros((len(BATCHES), len(LENGTHS)))
    for column, length in enumerate(LENGTHS):
        for row, batch in enumerate(BATCHES):
            largest = max(other for other, its_length in measured if its_length == length and other <= batch)
            table[row, column] = measured[largest, length] * batch / largest
    return table


def _cells() -> list[tuple[int, int]]:
    return [(batch, length) for batch in BATCHES for length in LENGTHS if batch * length <= MOST_TOKENS]
