"""Divisions into batches against every division there is, on random items and random tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.batching.plan import MAX_COLUMNS, CostColumns, Item, plan_batches
from python_backends.runtime.variants.latency_table import CostMs, LatencyTable

LENGTHS = (4, 8, 16)
MAX_ROWS = 5


def per_run_and_token(rows: int, length: int) -> float:
    return 10.0 + rows * length


def tables() -> st.SearchStrategy[LatencyTable]:
    """Any numbers; reading the manifest makes them ascend."""
    row = st.lists(st.floats(0.5, 50), min_size=3, max_size=3)
    return st.lists(row, min_size=3, max_size=3).map(
        lambda ms: LatencyTable.from_manifest({"batches": [1, 2, 4], "lengths": list(LENGTHS), "ms": ms})
    )


def items(*, most_rows: int, most: int = 8) -> st.SearchStrategy[list[Item]]:
    return st.lists(st.builds(Item, rows=st.integers(1, most_rows), length=st.integers(1, 20)), max_size=most)


def plan(items: Sequence[Item], cost_ms: CostMs) -> list[list[int]]:
    """The items' indices, divided into batches of the least total cost, short ones first."""
    order = sorted(range(len(items)), key=lambda index: items[index].length)
    batches = plan_batches([items[index] for index in order], CostColumns(cost_ms, max_rows=MAX_ROWS))
    return [order[start:end] for start, end in batches]


def cost_of(items: Sequence[Item], batches: Sequence[Sequence[int]], cost_ms: CostMs) -> float:
    return sum(cost_ms(sum(items[i].rows for i in batch), max(items[i].length for i in batch)) for batch in batches)


def fits(items: Sequence[Item], batch: Sequence[int]) -> bool:
    return len(batch) == 1 or sum(items[i].rows for i in batch) <= MAX_ROWS


def divisions_into_neighbours(order: Sequence[int]) -> Iterator[list[list[int]]]:
    if not order:
        yield []
    for size in range(1, len(order) + 1):
        for rest in divisions_into_neighbours(order[size:]):
            yield [list(order[:size]), *rest]


def divisions_into_sets(indices: Sequence[int]) -> Iterator[list[list[int]]]:
    if not indices:
        yield []
        return
    for rest in divisions_into_sets(indices[1:]):
        yield [[indices[0]], *rest]
        for place in range(len(rest)):
            yield [*rest[:place], [indices[0], *rest[place]], *rest[place + 1 :]]


@given(items=items(most_rows=6), table=tables())
def test_no_division_into_neighbours_costs_less(items: list[Item], table: LatencyTable) -> None:
    planned = plan(items, table.cost_ms)

    order = sorted(range(len(items)), key=lambda index: items[index].length)
    candidates = [batches for batches in divisions_into_neighbours(order) if all(fits(items, batch) for batch in batches)]
    assert cost_of(items, planned, table.cost_ms) == pytest.approx(min(cost_of(items, batches, table.cost_ms) for batches in candidates))


@given(items=items(most_rows=1, most=6), table=tables())
def test_no_division_at_all_costs_less_for_items_of_one_row(items: list[Item], table: LatencyTable) -> None:
    planned = plan(items, table.cost_ms)

    candidates = [batches for batches in divisions_into_sets(range(len(items))) if all(fits(items, batch) for batch in batches)]
    assert cost_of(items, planned, table.cost_ms) == pytest.approx(min(cost_of(items, batches, table.cost_ms) for batches in candidates))


@given(items=items(most_rows=1), table=tables(), limit_ms=st.floats(0.5, 100))
def test_under_a_limit_no_division_that_keeps_it_costs_less(items: list[Item], table: LatencyTable, limit_ms: float) -> None:
    ordered = sorted(items, key=lambda item: item.length)
    planned = [list(range(*batch)) for batch in plan_batches(ordered, CostColumns(table.cost_ms, max_rows=MAX_ROWS), limit_ms=limit_ms)]

    def keeps_it(batch: Sequence[int]) -> bool:
        return len(batch) == 1 or (fits(ordered, batch) and cost_of(ordered, [batch], table.cost_ms) <= limit_ms)

    candidates = [batches for batches in divisions_into_neighbours(range(len(ordered))) if all(map(keeps_it, batches))]
    assert all(map(keeps_it, planned))
    assert cost_of(ordered, planned, table.cost_ms) == pytest.approx(min(cost_of(ordered, one, table.cost_ms) for one in candidates))


@given(items=items(most_rows=7, most=30), table=tables())
def test_every_item_is_planned_once_in_a_batch_with_room_and_short_ones_first(items: list[Item], table: LatencyTable) -> None:
    planned = plan(items, table.cost_ms)

    assert sorted(index for batch in planned for index in batch) == list(range(len(items)))
    assert all(fits(items, batch) for batch in planned)
    for batch, following in pairwise(planned):
        assert max(items[i].length for i in batch) <= min(items[i].length for i in following)


def test_what_costs_nothing_to_run_apart_runs_apart() -> None:
    assert plan([Item(1, 9), Item(1, 3), Item(1, 5)], lambda rows, length: rows * length) == [[1], [2], [0]]


def test_a_page_does_not_run_among_sentences() -> None:
    sentences_and_a_page = [Item(1, 8), Item(1, 200), Item(1, 9), Item(1, 10)]

    assert plan(sentences_and_a_page, per_run_and_token) == [[0, 2, 3], [1]]


def test_of_divisions_that_cost_the_same_the_one_of_fewest_runs_is_taken() -> None:
    assert plan([Item(1, 8)] * 3, lambda rows, length: rows * length) == [[0, 1, 2]]


def test_what_is_larger_than_any_batch_runs_alone_and_changes_nothing_for_the_others() -> None:
    assert plan([Item(1, 8), Item(MAX_ROWS + 3, 8), Item(1, 8)], per_run_and_token) == [[0], [1], [2]]


def test_costs_are_worked_out_once_per_length_and_not_kept_without_bound() -> None:
    asked: list[tuple[int, int]] = []

    def cost_ms(rows: int, length: int) -> float:
        asked.append((rows, length))
        return float(rows * length)

    columns = CostColumns(cost_ms, max_rows=2)

    assert columns(7) == [0.0, 7.0, 14.0] == columns(7)
    assert asked == [(1, 7), (2, 7)]
    for length in range(8, MAX_COLUMNS + 8):
        columns(length)
    columns(7)
    assert asked.count((1, 7)) == 2
