"""Latency tables: costs between, at and beyond measured cells, and tables that are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.runtime.errors import ConfigError
from python_backends.runtime.variants.latency_table import LatencyTable, token_cost

MANIFEST: dict[str, Any] = {"threads": 2, "batches": [1, 4], "lengths": [10, 20], "ms": [[1.0, 2.0], [3.0, 6.0]]}
TABLE = LatencyTable.from_manifest(MANIFEST)

TABLES = st.lists(st.lists(st.floats(0.1, 100), min_size=3, max_size=3), min_size=2, max_size=2).map(
    lambda ms: LatencyTable.from_manifest({"batches": [2, 8], "lengths": [4, 8, 32], "ms": ms})
)


@pytest.mark.parametrize(
    ("rows", "length", "ms"),
    [
        pytest.param(1, 10, 1.0, id="first-cell"),
        pytest.param(4, 20, 6.0, id="last-cell"),
        pytest.param(1, 15, 1.5, id="between-lengths"),
        pytest.param(2, 10, 1.0 + 2.0 / 3, id="between-batches"),
        pytest.param(2, 15, 1.5 + (4.5 - 1.5) / 3, id="between-both"),
        pytest.param(1, 3, 1.0, id="shorter-than-measured"),
        pytest.param(8, 20, 12.0, id="more-rows-than-measured"),
        pytest.param(4, 60, 18.0, id="longer-than-measured"),
        pytest.param(8, 60, 36.0, id="beyond-both"),
        pytest.param(1, 40, 4.0, id="beyond-one"),
    ],
)
def test_cost(rows: int, length: int, ms: float) -> None:
    assert TABLE.cost_ms(rows, length) == pytest.approx(ms)


@given(TABLES, st.integers(1, 20), st.integers(0, 80))
def test_more_rows_and_longer_ones_never_cost_less(table: LatencyTable, rows: int, length: int) -> None:
    here = table.cost_ms(rows, length)

    assert here > 0
    assert table.cost_ms(rows + 1, length) >= here * (1 - 1e-9)
    assert table.cost_ms(rows, length + 1) >= here * (1 - 1e-9)


def test_a_cell_below_its_smaller_neighbours_is_raised_to_theirs() -> None:
    noisy = LatencyTable.from_manifest({**MANIFEST, "ms": [[2.0, 1.0], [1.5, 5.0]]})

    assert noisy.ms == ((2.0, 2.0), (2.0, 5.0))


def test_a_table_of_one_cell_is_one() -> None:
    table = LatencyTable.from_manifest({"batches": [1], "lengths": [8], "ms": [[2]]})

    assert [table.cost_ms(1, 8), table.cost_ms(3, 16)] == [2.0, 12.0]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"batches": [4, 1]}, id="descending"),
        pytest.param({"lengths": [10, 10]}, id="twice-the-same"),
        pytest.param({"lengths": [0, 10]}, id="nothing"),
        pytest.param({"batches": ["1", 4]}, id="text"),
        pytest.param({"batches": []}, id="empty"),
        pytest.param({"ms": [[1.0, 2.0]]}, id="a-row-missing"),
        pytest.param({"ms": [[1.0, 2.0], [3.0]]}, id="a-cell-missing"),
        pytest.param({"ms": [[1.0, 2.0], [3.0, 0.0]]}, id="no-time"),
        pytest.param({"ms": [[1.0, 2.0], [3.0, float("nan")]]}, id="not-a-number"),
        pytest.param({"ms": [[1.0, 2.0], [3.0, float("inf")]]}, id="endless"),
        pytest.param({"ms": [[1.0, 2.0], [3.0, None]]}, id="null"),
        pytest.param({"ms": None}, id="no-table"),
    ],
)
def test_what_is_no_table_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="latency_table"):
        LatencyTable.from_manifest({**MANIFEST, **change})


def test_a_manifest_without_a_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs batches, lengths and ms"):
        LatencyTable.from_manifest({"batches": [1], "lengths": [8]})


def test_without_a_table_a_run_costs_its_tokens_and_something_of_its_own() -> None:
    assert token_cost(2, 16) < 2 * token_cost(1, 16)
    assert token_cost(2, 100) > token_cost(1, 10) + token_cost(1, 100)
