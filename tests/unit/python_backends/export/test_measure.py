"""The latency table: full, rising, bounded in time, under a clock that tests turn."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from python_backends.export.measure import (
    BATCHES,
    BUDGET_S,
    LENGTHS,
    LONG_ROUNDS,
    MAX_ROUNDS,
    MAX_RUNS,
    MIN_ROUNDS,
    largest_cell,
    latency_table,
    rising,
)


class Machine:
    """Runs take `ms_per_token` on a clock of its own; one listed in `disturbed` (by its number) takes a
    second more.
    """

    def __init__(self, ms_per_token: float, disturbed: tuple[int, ...] = ()) -> None:
        self.cells: list[tuple[int, int]] = []
        self.now_s = 0.0
        self._ms_per_token, self._disturbed = ms_per_token, disturbed

    def run(self, batch: int, length: int) -> None:
        self.now_s += batch * length * self._ms_per_token / 1000 + (len(self.cells) in self._disturbed)
        self.cells.append((batch, length))

    def clock(self) -> float:
        return self.now_s


def rounds(machine: Machine) -> int:
    """Without the first, which is not counted."""
    return sum(cell == (1, 8) != before for before, cell in pairwise([(0, 0), *machine.cells])) - 1


def test_every_cell_is_there_also_those_too_large_to_measure() -> None:
    machine = Machine(0.01)

    table = latency_table(machine.run, threads=2, clock=machine.clock)

    assert (table["threads"], table["batches"], table["lengths"]) == (2, [*BATCHES], [*LENGTHS])
    assert table["ms"] == [[pytest.approx(batch * length * 0.01) for length in LENGTHS] for batch in BATCHES]
    assert (64, 64) in machine.cells
    assert max(batch * length for batch, length in machine.cells) == 4096


def test_the_table_is_plain_json() -> None:
    machine = Machine(0.01)
    table = latency_table(machine.run, threads=2, clock=machine.clock)

    assert json.loads(json.dumps(table)) == table


def test_a_disturbed_run_is_not_believed() -> None:
    quiet, disturbed = Machine(0.001), Machine(0.001, disturbed=(60, 150, 200))

    expected = latency_table(quiet.run, threads=1, clock=quiet.clock)["ms"]

    assert latency_table(disturbed.run, threads=1, clock=disturbed.clock)["ms"] == [pytest.approx(row) for row in expected]


@pytest.mark.parametrize("busy_s", [pytest.param(0.05, id="often"), pytest.param(0.5, id="all-but-once-a-round")])
def test_beside_a_busy_server_the_undisturbed_runs_count(busy_s: float) -> None:
    class Busy(Machine):
        def run(self, batch: int, length: int) -> None:
            """A neighbour has the CPU from time to time."""
            super().run(batch, length)
            if len(self.cells) % (2 if busy_s > 0.1 else 3):
                self.now_s += busy_s

    quiet, busy = Machine(0.001), Busy(0.001)

    assert latency_table(busy.run, threads=1, clock=busy.clock)["ms"][0] == pytest.approx(
        latency_table(quiet.run, threads=1, clock=quiet.clock)["ms"][0]
    )


def test_what_is_short_is_run_several_times_a_round() -> None:
    machine = Machine(0.1)

    latency_table(machine.run, threads=1, clock=machine.clock)

    assert machine.cells.count((1, 8)) - 1 == MAX_RUNS * rounds(machine)
    assert machine.cells.count((16, 256)) - 1 == LONG_ROUNDS


def test_the_first_run_of_a_cell_does_not_count() -> None:
    class Compiling(Machine):
        def run(self, batch: int, length: int) -> None:
            self.now_s += (batch, length) not in self.cells
            super().run(batch, length)

    machine = Compiling(0.001)

    table = latency_table(machine.run, threads=1, clock=machine.clock)["ms"]

    assert table == [[pytest.approx(batch * length * 0.001) for length in LENGTHS] for batch in BATCHES]
    assert set(machine.cells) == set(_cells_of_one_round()), "a slow first run leaves no larger cell out"


def test_cells_larger_than_one_that_takes_long_are_not_measured() -> None:
    machine = Machine(2.0)  # 256 tokens take 0.512 s

    table = latency_table(machine.run, threads=1, clock=machine.clock)["ms"]

    assert table == [[pytest.approx(batch * length * 2.0) for length in LENGTHS] for batch in BATCHES]
    assert max(batch * length for batch, length in machine.cells) == 256
    assert all((1, length) in machine.cells for length in LENGTHS)


def _cells_of_one_round() -> list[tuple[int, int]]:
    machine = Machine(0.1)
    latency_table(machine.run, threads=1, clock=machine.clock)
    return machine.cells[: machine.cells.index((1, 8), 1)]


@pytest.mark.parametrize(
    ("ms_per_token", "expected"),
    [pytest.param(10.0, MIN_ROUNDS, id="slow"), pytest.param(0.0001, MAX_ROUNDS, id="fast")],
)
def test_rounds_are_few_where_they_are_long(ms_per_token: float, expected: int) -> None:
    machine = Machine(ms_per_token)

    latency_table(machine.run, threads=1, clock=machine.clock)

    assert rounds(machine) == expected


def test_further_rounds_are_of_short_cells_and_end_with_the_budget() -> None:
    machine = Machine(0.05)

    latency_table(machine.run, threads=2, clock=machine.clock)

    assert MIN_ROUNDS < rounds(machine) < MAX_ROUNDS
    assert machine.cells.count((16, 256)) == 1 + LONG_ROUNDS
    assert machine.cells.count((1, 8)) > MIN_ROUNDS * MAX_RUNS
    uncounted_s = sum(batch * length for batch, length in set(machine.cells)) * 0.05 / 1000
    assert BUDGET_S < machine.now_s - uncounted_s < BUDGET_S + 1.0, "one round of short cells at most"


def test_the_largest_cell_is_one_that_is_measured() -> None:
    assert largest_cell() == (16, 256)
    assert largest_cell() in _cells_of_one_round()


def test_noise_is_evened_out_from_both_sides() -> None:
    assert rising(np.array([[1.0, 9.0, 3.0, 4.0]])).tolist() == [[1.0, 6.0, 6.0, 6.5]]
    assert rising(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist() == [[1.0, 2.0], [3.0, 4.0]]


@given(arrays(np.float64, (4, 5), elements=st.floats(0.01, 1000)))
def test_whatever_was_measured_the_table_rises_and_stays_within_it(table: np.ndarray) -> None:
    evened = rising(table)

    assert (np.diff(evened, axis=0) >= 0).all()
    assert (np.diff(evened, axis=1) >= 0).all()
    assert table.min() <= evened.min()
    assert evened.max() <= table.max()
