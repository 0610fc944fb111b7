"""The bounds against every possible choice, on small traces."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.eviction.bounds import most_hits, most_saved_ms
from perf.eviction.traces import Trace, numbered

small_traces = st.lists(st.integers(0, 4), min_size=1, max_size=10).map(numbered)


def best(trace: Trace, entries: int) -> float:
    """What can be saved at most: after each request any one may go, also the new one."""

    @cache
    def saved(at: int, kept: frozenset[int]) -> float:
        if at == len(trace.keys):
            return 0.0
        key = trace.keys[at]
        now = trace.cost_ms(key) if key in kept else 0.0
        wanted = kept | {key}
        choices = [wanted] if len(wanted) <= entries else [wanted - {victim} for victim in wanted]
        return now + max(saved(at + 1, choice) for choice in choices)

    return saved(0, frozenset())


@given(small_traces, st.integers(1, 3))
def test_most_hits_is_exact(keys: list[int], entries: int) -> None:
    assert most_hits(keys, entries) == best(Trace("", "", keys), entries)


@given(small_traces, st.integers(1, 3), st.lists(st.floats(0.1, 10), min_size=5, max_size=5))
def test_most_saved_is_never_less_than_can_be(keys: list[int], entries: int, costs_ms: list[float]) -> None:
    trace = Trace("", "", keys, costs_ms)
    assert most_saved_ms(trace, entries) >= best(trace, entries) - 1e-9


def test_most_saved_takes_the_best_first() -> None:
    trace = Trace("", "", [0, 1, 0, 1], [5.0, 1.0])
    assert most_saved_ms(trace, 1) == pytest.approx(6.0)
    assert most_saved_ms(Trace("", "", [0, 1, 2, 3, 0, 1, 2, 3], [9.0, 1.0, 1.0, 1.0]), 1) == pytest.approx(9.0 + 1.0)
