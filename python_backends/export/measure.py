"""How long a variant takes for each (batch, length): the latency table that batching plans with and `auto` compares variants by.

All cells are measured in turn, round after round, so that a disturbance falls on all of them alike; each gets the least of its times. What
disturbs a run only makes it longer, and builds run beside a server that answers requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
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

# Of a cell in one round: what is short is run again, since a neighbour's turn on its CPU is as long as several of its runs.
CELL_S, MOST_RUNS = 0.02, 5


def largest_cell() -> tuple[int, int]:
    """The measured (batch, length) of the most tokens, of the longest where several have as many."""
    return max(_cells(), key=lambda cell: (cell[0] * cell[1], cell[1]))


def latency_table(run: Callable[[int, int], object], *, threads: int, clock: Callable[[], float] = time.perf_counter) -> Mapping[str, Any]:
    """`latency_table` of a manifest: `ms[i][j]` for `batches[i]` and `lengths[j]`, rising along both.

    `run(batch, length)` is what is timed; once for each cell it is not, as its first time may compile or allocate.
    """
    for cell in _cells():
        run(*cell)
    seconds = dict.fromkeys(_cells(), float("inf"))
    started_s = clock()
    for number in range(MOST_ROUNDS):
        if number >= FEWEST_ROUNDS and (clock() - started_s) * (number + 1) / number > BUDGET_S:
            break
        for cell, least_s in seconds.items():
            seconds[cell] = min(least_s, _least_s(partial(run, *cell), clock))
    measured = {cell: 1000 * least_s for cell, least_s in seconds.items()}
    table = rising(_completed(measured))
    return {
        "threads": threads,
        "batches": [*BATCHES],
        "lengths": [*LENGTHS],
        "ms": [[round(ms, 4) for ms in row] for row in table.tolist()],
    }


def _least_s(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """Of some runs, one at least."""
    least_s, first_s = float("inf"), clock()
    begun_s = first_s
    for _ in range(MOST_RUNS):
        run()
        ended_s = clock()
        least_s = min(least_s, ended_s - begun_s)
        if ended_s - first_s >= CELL_S:
            break
        begun_s = ended_s
    return least_s


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
