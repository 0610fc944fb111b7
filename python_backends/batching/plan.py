"""Batch planning: divides items into batches of the least total cost, by exact dynamic programming over their
lengths.

A batch costs what its rows cost at its longest length. If items are sorted by length, an optimal division
puts only neighbours into a batch: for given batch sizes, moving the longest items into the batch with the
longest one lengthens no batch. (This holds for items of one row each; with several rows each, the result is
the best among divisions into neighbours.) The recursion is the textbook one for partitioning a sequence:
best[i] = min over j < i of best[j] + cost(rows from j to i, length of item i), where cost ascends in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from operator import add
from typing import Protocol

from python_backends.runtime.variants.latency_table import CostMs

# Costs by rows for one length. Position 0 stands for an item that is larger than any batch and runs alone,
# whatever it costs.
Column = Sequence[float]

MAX_COLUMNS = 4096


class Sized(Protocol):
    """An item that can be planned."""

    @property
    def rows(self) -> int: ...
    @property
    def length(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Item:
    """Rows that must stay together, all of one length."""

    rows: int
    length: int


class CostColumns:
    """Memo table of batch costs by length, then by rows up to `max_rows`; planning looks up thousands of
    them.

    Clients choose the lengths, so the table is cleared at 4096 of them.
    """

    def __init__(self, cost_ms: CostMs, *, max_rows: int) -> None:
        self.cost_ms = cost_ms
        self.max_rows = max_rows
        self._columns: dict[int, Column] = {}

    def __call__(self, length: int) -> Column:
        """Return the costs of 0 to `max_rows` rows of `length`."""
        column = self._columns.get(length)
        if column is None:
            if len(self._columns) >= MAX_COLUMNS:
                self._columns.clear()
            column = self._columns[length] = [0.0, *(self.cost_ms(rows, length) for rows in range(1, self.max_rows + 1))]
        return column


def plan_batches(items: Sequence[Sized], columns: CostColumns, *, limit_ms: float = inf) -> list[tuple[int, int]]:
    """Divide items that are sorted by length; return batches as [start, end) of positions in
    `items`.

    No batch of several items costs more than `limit_ms`.
    """
    least, starts, rows_before, first = [0.0], [0], [0], 0
    for position, item in enumerate(items):
        rows = rows_before[-1] + item.rows
        column = columns(item.length)
        # A start that does not fit here fits no later item either, since costs ascend: `first` only moves
        # forward.
        while first < position and not _fits(column, rows - rows_before[first], columns.max_rows, limit_ms):
            first += 1
        sizes = [rows - before for before in rows_before[first:]] if item.rows <= columns.max_rows else [0]
        costs = [*map(add, least[first:], map(column.__getitem__, sizes))]
        cheapest = min(costs)
        # Among equal costs take the largest batch: fewer runs, where the table shows no difference.
        starts.append(first + costs.index(cheapest))
        least.append(cheapest)
        rows_before.append(rows)
    return _batches(starts)


def _fits(column: Column, rows: int, max_rows: int, limit_ms: float) -> bool:
    return rows <= max_rows and column[rows] <= limit_ms


def _batches(starts: Sequence[int]) -> list[tuple[int, int]]:
    batches, end = [], len(starts) - 1
    while end:
        batches.append((starts[end], end))
        end = starts[end]
    return batches[::-1]
