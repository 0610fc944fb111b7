"""Latency table of a variant: milliseconds of a batch by rows and length, measured on this machine when it
was built.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from python_backends.runtime.errors import ConfigError

CostMs = Callable[[int, int], float]
Grid = tuple[tuple[float, ...], ...]

# Fixed cost of a run in tokens, for models without a table. A small encoder under ONNX Runtime on a CPU takes
# 1 ms for 16 tokens, of which 0.3 ms are fixed: the work of about eight tokens.
TOKENS_PER_RUN = 8


@dataclass(frozen=True, slots=True)
class LatencyTable:
    """`ms[i][j]` is the time of `batches[i]` rows of length `lengths[j]`; both ascend, and the times ascend
    along both.
    """

    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    ms: Grid

    @classmethod
    def from_manifest(cls, entry: Mapping[str, Any]) -> LatencyTable:
        """Read a manifest's `latency_table`; a cell below its smaller neighbours is noise, and is raised to
        them.

        Raises:
            ConfigError: The entry is not a full table of positive numbers over ascending batches and lengths.
        """
        try:
            batches, lengths = tuple(entry["batches"]), tuple(entry["lengths"])
            ms = tuple(tuple(float(cell) for cell in row) for row in entry["ms"])
        except (KeyError, TypeError, ValueError) as exc:
            raise ConfigError(f"the manifest's latency_table needs batches, lengths and ms, all numbers: {exc!r}") from exc
        if not (_ascend(batches) and _ascend(lengths) and _is_full(ms, len(batches), len(lengths))):
            raise ConfigError(
                "the manifest's latency_table must have ascending batches and lengths and a positive time for each pair of them"
            )
        return cls(batches, lengths, _monotone(ms))

    def cost_ms(self, rows: int, length: int) -> float:
        """Return the milliseconds of a batch: interpolated between cells, proportional beyond the largest,
        constant below.
        """
        row, row_share, row_scale = _place(rows, self.batches)
        column, column_share, column_scale = _place(length, self.lengths)
        above, below = self.ms[row], self.ms[min(row + 1, len(self.ms) - 1)]
        right = min(column + 1, len(self.lengths) - 1)
        first = above[column] + column_share * (above[right] - above[column])
        second = below[column] + column_share * (below[right] - below[column])
        return (first + row_share * (second - first)) * row_scale * column_scale


def token_cost(rows: int, length: int) -> float:
    """Return the cost of a batch without measurements: its tokens plus a constant per run. No unit; for
    comparisons only.
    """
    return float(rows * length + TOKENS_PER_RUN)


def _place(value: int, marks: Sequence[int]) -> tuple[int, float, float]:
    """Locate `value`: return the index of the mark at or below it, the share of the way to the next, the
    factor beyond the last.
    """
    if value >= marks[-1]:
        return len(marks) - 1, 0.0, value / marks[-1]
    if value <= marks[0]:
        return 0, 0.0, 1.0
    index = bisect_right(marks, value) - 1
    return index, (value - marks[index]) / (marks[index + 1] - marks[index]), 1.0


def _ascend(marks: Sequence[object]) -> bool:
    numbers = [mark for mark in marks if isinstance(mark, int) and mark > 0]
    return 0 < len(numbers) == len(marks) and all(low < high for low, high in pairwise(numbers))


def _is_full(ms: Grid, rows: int, columns: int) -> bool:
    return len(ms) == rows and all(len(row) == columns and all(0 < cell < float("inf") for cell in row) for row in ms)


def _monotone(ms: Grid) -> Grid:
    grid = [list(row) for row in ms]
    for i, row in enumerate(grid):
        for j in range(len(row)):
            row[j] = max(row[j], row[j - 1] if j else 0.0, grid[i - 1][j] if i else 0.0)
    return tuple(tuple(row) for row in grid)
