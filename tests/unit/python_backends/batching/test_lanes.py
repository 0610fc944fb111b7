"""Threads and one queue: everything submitted is answered once, whatever fails, and what may run side by side does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backends.batching.batch_queue import Batch, BatchQueue, Waiter
from python_backends.batching.lanes import Lanes
from python_backends.batching.plan import CostColumns
from python_backends.runtime.errors import BackendError, ExecutionError
from python_backends.runtime.execution import Answer
from tests.unit.python_backends.batching.lanes_bench import PATIENCE_S, Asked


@dataclass
class Model:
    """Answers each request with its batch's shape; a batch of a length in `gates` waits until that gate is opened."""

    gates: dict[int, threading.Event] = field(default_factory=dict)
    poison: int = -1
    runs: list[tuple[int, int]] = field(default_factory=list)
    began: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def compute(self, batch: Batch[Asked]) -> Sequence[Answer]:
        self.runs.append((batch.rows, batch.length))
        self.began.release()
        if batch.length in self.gates:
            assert self.gates[batch.length].wait(PATIENCE_S)
        if batch.length == self.poison:
            raise ZeroDivisionError("model")
        return [{"SHAPE": np.array([batch.rows, batch.length])} for _ in batch.waiters]

    def has_begun(self) -> None:
        assert self.began.acquire(timeout=PATIENCE_S), "no batch began"


def cost_ms(rows: int, length: int) -> float:
    return 0.5 + rows * max(length, 8) / 10


def ask(length: int, *, fails: bool = False) -> Waiter[Asked]:
    return Waiter(Asked(fails=fails), 1, length, 0.0)


Start = Callable[..., Lanes[Asked]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Lanes over a model, closed at the end; no thread may be left."""
    before, started = threading.active_count(), []

    def start_lanes(model: Model, *, count: int = 2, cost: Callable[[int, int], float] = cost_ms) -> Lanes[Asked]:
        lanes: Lanes[Asked] = Lanes(BatchQueue(CostColumns(cost, max_rows=8), lanes=count), model.compute, count=count)
        started.append(lanes)
        return lanes

    yield start_lanes
    for lanes in started:
        lanes.close()
    assert threading.active_count() == before


def shape(answer: Answer) -> list[int]:
    assert not isinstance(answer, BackendError), answer
    return answer["SHAPE"].tolist()  # type: ignore[no-any-return]


def test_what_is_submitted_together_runs_together(start: Start) -> None:
    lanes, waiters = start(Model()), [ask(10), ask(10), ask(100)]

    lanes.submit(waiters)

    assert [shape(one.request.result()) for one in waiters] == [[2, 10], [2, 10], [1, 100]]


def test_a_sentence_is_answered_while_a_page_runs_and_pages_wait(start: Start) -> None:
    model = Model(gates={100: threading.Event()})
    lanes, pages, sentence = start(model), [ask(100), ask(100)], ask(10)
    lanes.submit(pages[:1])
    model.has_begun()
    lanes.submit(pages[1:])

    lanes.submit([sentence])

    assert shape(sentence.request.result()) == [1, 10]
    assert not any(page.request.answers for page in pages)
    assert lanes.waiting_rows == 1
    model.gates[100].set()
    assert [shape(page.request.result()) for page in pages] == [[1, 100], [1, 100]]


def test_with_one_lane_the_sentence_is_next(start: Start) -> None:
    model = Model(gates={100: threading.Event()})
    lanes = start(model, count=1)
    lanes.submit([ask(100)])
    model.has_begun()
    sentence, others = ask(10), [ask(90), ask(120)]
    lanes.submit([*others, sentence])
    assert lanes.waiting_rows == 3

    model.gates[100].set()

    assert [shape(one.request.result()) for one in (sentence, *others)] == [[1, 10], [1, 90], [1, 120]]
    assert model.runs[:2] == [(1, 100), (1, 10)]


def test_a_batch_that_fails_is_answered_and_the_next_one_runs(start: Start) -> None:
    lanes, bad, good = start(Model(poison=7)), ask(7), ask(10)

    lanes.submit([bad])
    assert "ZeroDivisionError" in str(bad.request.result())
    lanes.submit([good])

    assert isinstance(bad.request.answers[0], ExecutionError)
    assert shape(good.request.result()) == [1, 10]


def test_answers_that_are_too_few_are_an_error_for_all(start: Start) -> None:
    model = Model()
    lanes: Lanes[Asked] = Lanes(BatchQueue(CostColumns(cost_ms, max_rows=8), lanes=1), lambda batch: [], count=1)
    one = ask(10)

    lanes.submit([one])

    assert "0 answers for 1 requests" in str(one.request.result())
    lanes.close()
    assert model.runs == []


def test_an_answer_that_cannot_be_sent_costs_the_others_nothing(start: Start) -> None:
    waiters = [ask(10, fails=True), ask(10)]

    start(Model()).submit(waiters)

    assert [shape(one.request.result()) for one in waiters] == [[2, 10], [2, 10]]


def test_where_planning_fails_everything_that_waits_is_answered(start: Start) -> None:
    def cost(rows: int, length: int) -> float:
        if length == 13:
            raise LookupError("no such length")
        return cost_ms(rows, length)

    lanes = start(Model(), cost=cost)
    waiters, good = [ask(13), ask(10)], ask(10)
    lanes.submit(waiters)
    assert ["planning failed" in str(one.request.result()) for one in waiters] == [True, True]

    lanes.submit([good])

    assert shape(good.request.result()) == [1, 10]


def test_closing_answers_everything_first(start: Start) -> None:
    model = Model(gates={100: threading.Event()})
    lanes, waiters = start(model, count=1), [ask(100), ask(100), ask(10)]
    lanes.submit(waiters[:1])
    model.has_begun()
    lanes.submit(waiters[1:])
    closing = threading.Thread(target=lanes.close)
    closing.start()

    model.gates[100].set()
    closing.join(PATIENCE_S)

    assert not closing.is_alive()
    assert [len(one.request.answers) for one in waiters] == [1, 1, 1]


def test_closing_wakes_those_that_found_nothing_to_run(start: Start) -> None:
    model = Model(gates={100: threading.Event()})
    lanes = start(model)
    lanes.submit([ask(100)])
    model.has_begun()
    lanes.submit([ask(100)])
    closing = threading.Thread(target=lanes.close)
    closing.start()
    time.sleep(0.05)  # they have looked, found that only what is short may run now, and sleep again

    model.gates[100].set()
    closing.join(PATIENCE_S)

    assert not closing.is_alive()


def test_at_once_computes_in_the_callers_thread_and_sends_nothing(start: Start) -> None:
    lanes, waiters = start(Model()), [ask(8), ask(9)]

    computed = lanes.try_compute_inline(waiters)

    assert computed is not None
    assert [shape(answer) for answer in computed] == [[2, 9], [2, 9]]
    assert not any(one.request.answers for one in waiters)
    assert lanes.try_compute_inline([ask(100)]) is None


def test_what_fails_at_once_frees_its_lane(start: Start) -> None:
    lanes, good = start(Model(poison=7), count=1), ask(10)

    (answer,) = lanes.try_compute_inline([ask(7)]) or pytest.fail("not at once")
    lanes.submit([good])

    assert isinstance(answer, ExecutionError)
    assert shape(good.request.result()) == [1, 10]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.integers(1, 200), min_size=1, max_size=10), max_size=8), st.integers(1, 3))
def test_everything_is_answered_once_in_any_order_of_arrival(groups: list[list[int]], count: int) -> None:
    model = Model(poison=7)
    lanes: Lanes[Asked] = Lanes(BatchQueue(CostColumns(cost_ms, max_rows=8), lanes=count), model.compute, count=count)
    waiters = [[ask(length) for length in lengths] for lengths in groups]

    for group in waiters:
        lanes.submit(group)
    lanes.close()

    assert all(len(one.request.answers) == 1 for group in waiters for one in group)
    assert sum(rows for rows, _ in model.runs) == sum(map(len, groups))
    assert lanes.waiting_rows == 0


def test_a_hold_ends_with_the_batch_that_what_waits_waits_for(start: Start) -> None:
    model = Model(gates={100: threading.Event()})
    lanes, pages = start(model, count=1), [ask(100), ask(100)]
    lanes.submit(pages[:1])
    model.has_begun()
    lanes.submit(pages[1:])
    held = threading.Thread(target=lanes.hold, args=(PATIENCE_S,))
    held.start()

    model.gates[100].set()
    held.join(PATIENCE_S / 2)

    assert not held.is_alive()


def test_nobody_is_held_where_nothing_waits(start: Start) -> None:
    model = Model(gates={100: threading.Event()})
    lanes, page = start(model), ask(100)
    lanes.hold(10 * PATIENCE_S)
    lanes.submit([page])
    model.has_begun()
    lanes.hold(10 * PATIENCE_S)

    assert not page.request.answers
    model.gates[100].set()
    assert shape(page.request.result()) == [1, 100]
