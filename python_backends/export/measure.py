"""Measures the latency table of a variant: its time for each (batch, length). Batch planning and the choice
of `auto` use it.

All cells are measured in turn, over several rounds, so that a disturbance affects all of them alike. Each
cell gets its minimum, since disturbances only make a run longer, and builds often run beside a server that
answers requests.
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

# Larger cells are not measured, nor those larger than one that takes long: their cost is proportional to their rows by
# then. A variant that its CPU can only emulate would take minutes otherwise.
MAX_TOKENS = 4096
LONG_RUN_S = 0.5

# Every cell is measured in the first two rounds; then only the short ones, which take more rounds to be steady, until the time is over:
# a disturbance is a small part of a long run.
BUDGET_S = 8.0
LONG_ROUNDS, MIN_ROUNDS, MAX_ROUNDS = 2, 3, 25
LONG_TOKENS = 1024

# Time and runs per cell and round: short cells run several times, since another process's time slice is as
# long as several of their runs.
CELL_S, MAX_RUNS = 0.02, 5


def largest_cell(max_tokens: int = MAX_TOKENS) -> tuple[int, int]:
    """Return the measured (batch, length) with the most tokens; among equals the longest."""
    return max(_cells(max_tokens), key=lambda cell: (cell[0] * cell[1], cell[1]))


def latency_table(
    run: Callable[[int, int], object], *, threads: int, max_tokens: int = MAX_TOKENS, clock: Callable[[], float] = time.perf_counter
) -> Mapping[str, Any]:
    """Measure the `latency_table` of a manifest: `ms[i][j]` for `batches[i]` and `lengths[j]`, rising along
    both.

    `run(batch, length)` is timed. Its first run for each cell is not, since it may compile or allocate.
    """
    seconds = dict.fromkeys(_warmed_up(run, _cells(max_tokens), clock), float("inf"))
    started_s = clock()
    for number in range(MAX_ROUNDS):
        if number >= MIN_ROUNDS and clock() - started_s > BUDGET_S:
            break
        for cell, least_s in seconds.items():
            if number < LONG_ROUNDS or cell[0] * cell[1] < LONG_TOKENS:
                seconds[cell] = min(least_s, _least_s(partial(run, *cell), clock))
    measured = {cell: 1000 * least_s for cell, least_s in seconds.items()}
    table = rising(_completed(measured))
    return {
        "threads": threads,
        "batches": [*BATCHES],
        "lengths": [*LENGTHS],
        "ms": [[round(ms, 4) for ms in row] for row in table.tolist()],
    }


def _warmed_up(run: Callable[[int, int], object], cells: list[tuple[int, int]], clock: Callable[[], float]) -> list[tuple[int, int]]:
    """Run the cells once, from few tokens to many, and return those that are to be measured."""
    warm, most_tokens = [], MAX_TOKENS
    for batch, length in sorted(cells, key=lambda cell: cell[0] * cell[1]):
        if batch > 1 and batch * length > most_tokens:
            continue
        warm.append((batch, length))
        if _took_s(run, batch, length, clock) > LONG_RUN_S and _took_s(run, batch, length, clock) > LONG_RUN_S:  # the first compiles
            most_tokens = min(most_tokens, batch * length)
    return warm


def _took_s(run: Callable[[int, int], object], batch: int, length: int, clock: Callable[[], float]) -> float:
    started_s = clock()
    run(batch, length)
    return clock() - started_s


def _least_s(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return the shortest time of several runs, at least one."""
    least_s, first_s = float("inf"), clock()
    begun_s = first_s
    for _ in range(MAX_RUNS):
        run()
        ended_s = clock()
        least_s = min(least_s, ended_s - begun_s)
        if ended_s - first_s >= CELL_S:
            break
        begun_s = ended_s
    return least_s


def rising(table: Array) -> Array:
    """Smooth noise so that times do not fall along either axis.

    The result is half-way between the smallest rising table above the measured one and the largest below it,
    so neither slow nor fast outliers are believed.
    """
    above = np.maximum.accumulate(np.maximum.accumulate(table, axis=0), axis=1)
    below = np.minimum.accumulate(np.minimum.accumulate(table[::-1, ::-1], axis=0), axis=1)[::-1, ::-1]
    evened: Array = (above + below) / 2
    return evened


def _completed(measured: Mapping[tuple[int, int], float]) -> Array:
    """Fill in cells that were not measured, with the cost per token of the largest measured batch of that
    length.
    """
    table = np.zeros((len(BATCHES), len(LENGTHS)))
    for column, length in enumerate(LENGTHS):
        for row, batch in enumerate(BATCHES):
            largest = max(other for other, its_length in measured if its_length == length and other <= batch)
            table[row, column] = measured[largest, length] * batch / largest
    return table


def _cells(max_tokens: int) -> list[tuple[int, int]]:
    """A single row of any length is always measured."""
    return [(batch, length) for batch in BATCHES for length in LENGTHS if batch == 1 or batch * length <= max_tokens]
