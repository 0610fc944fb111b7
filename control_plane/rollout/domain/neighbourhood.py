"""Rolling sample of texts embedded by two models, by which it is told whether both find the same texts alike.

Each new text is compared with those of the sample, in each space by itself: nothing is said of where a text is, so a
rotated or a smaller space is as good. Pure; called by `rollout/domain/agreement`.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = NDArray[Any]

SAMPLE = 128
"""Texts of the sample: Spearman's correlation of models that have nothing in common is then 0 within 0.09."""
LEAST = 64
"""Texts from which one is judged."""
NEAREST = 10


class Neighbourhood:
    """The texts of the rolling sample, in both spaces."""

    def __init__(self) -> None:
        self._rows = deque[tuple[Row, Row]](maxlen=SAMPLE)

    def agree(self, stable: Row, candidate: Row, *, least: float) -> bool | None:
        """Return whether a text is alike to the same others in both spaces, and add it to the sample; None: there are too few
        others, or it is one of them."""
        one, other = _unit(stable), _unit(candidate)
        if one is None or other is None:
            return False
        if self._rows and self._rows[-1][1].shape != other.shape:
            return False
        if any(np.array_equal(one, before) for before, _ in self._rows):
            return None
        held = tuple(zip(*self._rows, strict=True))
        self._rows.append((one, other))
        if len(self._rows) <= LEAST:
            return None
        here, there = np.stack(held[0]) @ one, np.stack(held[1]) @ other
        return spearman(here, there) >= least and shared_nearest(here, there) >= least


def spearman(one: Row, other: Row) -> float:
    """Return Spearman's rank correlation of two lists, from -1 to 1; 0 where one of them is constant."""
    ranks = [_ranks(each) for each in (one, other)]
    spread = [each - each.mean() for each in ranks]
    size = float(np.sqrt((spread[0] @ spread[0]) * (spread[1] @ spread[1])))
    return float(spread[0] @ spread[1]) / size if size > 0.0 else 0.0


def shared_nearest(one: Row, other: Row) -> float:
    """Return the part of the nearest of one list of similarities that are among those of the other."""
    nearest = [set(np.argsort(-each, kind="stable")[:NEAREST].tolist()) for each in (one, other)]
    return len(nearest[0] & nearest[1]) / NEAREST


def _ranks(values: Row) -> Row:
    """The ranks of a list's values; equal ones have the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    mean: Row = (ends - (count - 1) / 2.0)[place]
    return mean


def _unit(row: Row) -> Row | None:
    size = float(np.linalg.norm(row))
    return row / size if np.isfinite(size) and size > 0.0 else None
