"""Lanes in the background: their threads yield, their model is opened once it is needed, and nobody else waits for them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from python_backends.batching.background import BackgroundLanes
from python_backends.batching.batch_queue import Batch, Waiter
from python_backends.batching.plan import CostColumns
from python_backends.runtime.errors import ExecutionError
from python_backends.runtime.execution import Answer
from tests.unit.python_backends.batching.test_lanes import Asked

COLUMNS = CostColumns(lambda rows, length: float(rows * length), max_rows=64)


def policy() -> int:
    return os.sched_getscheduler(threading.get_native_id())


@dataclass
class Model:
    """Is opened and computes in threads that it remembers; opening fails as often as told to."""

    failures: int = 0
    opened: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)

    def open(self) -> Model:
        if self.failures:
            self.failures -= 1
            raise OSError("no memory")
        self.opened.append(policy())
        return self

    def __call__(self, batch: Batch[Asked]) -> Sequence[Answer]:
        self.computed.append(policy())
        return [{"ROWS": np.array([batch.rows])} for _ in batch.waiters]


@contextmanager
def lanes(model: Model) -> Iterator[BackgroundLanes[Asked]]:
    made = BackgroundLanes[Asked](COLUMNS, model.open)
    yield made
    made.close()


def asked() -> Waiter[Asked]:
    return Waiter(Asked(), 1, 3, 0.0)


def test_its_threads_and_those_of_its_model_yield_and_the_callers_does_not() -> None:
    model, own = Model(), policy()
    with lanes(model) as background:
        for _ in range(2):
            waiter = asked()
            background.submit([waiter])
            waiter.request.result()

    assert (model.opened, model.computed) == ([os.SCHED_IDLE], [os.SCHED_IDLE, os.SCHED_IDLE])
    assert policy() == own


def test_a_model_that_never_has_such_requests_is_not_opened_twice() -> None:
    model, before = Model(), threading.active_count()
    with lanes(model) as background:
        assert (background.waiting_rows, threading.active_count()) == (0, before)
    assert model.opened == []


def test_where_it_cannot_be_opened_the_request_fails_and_the_next_one_tries_again() -> None:
    model = Model(failures=1)
    with lanes(model) as background:
        first, second = asked(), asked()
        background.submit([first])
        error = first.request.result()
        background.submit([second])
        assert second.request.result() == {"ROWS": np.array([1])}

    assert isinstance(error, ExecutionError)
    assert "no memory" in str(error)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before
