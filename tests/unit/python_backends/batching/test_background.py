"""Lanes in the background: their threads start once they are needed, and a failed batch does not end them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from python_backends.batching.background import BackgroundLanes
from python_backends.batching.batch_queue import Batch, Waiter
from python_backends.batching.plan import CostColumns
from python_backends.runtime.errors import BackendError, ExecutionError, RequestError
from python_backends.runtime.execution import Answer
from tests.unit.python_backends.batching.lanes_bench import Asked

COLUMNS = CostColumns(lambda rows, length: float(rows * length), max_rows=64)


@dataclass
class Model:
    """Fails as often as told to."""

    failures: int = 0
    unprepared: bool = False
    threads: list[int] = field(default_factory=list)

    def prepare(self, requests: Sequence[Asked]) -> Sequence[Sequence[Waiter[Asked]] | BackendError]:
        self.threads.append(threading.get_ident())
        if self.unprepared:
            raise KeyError("vocabulary")
        return [RequestError("not text") if request.fails else [Waiter(request, 1, 3, 0.0)] for request in requests]

    def compute(self, batch: Batch[Asked]) -> Sequence[Answer]:
        if self.failures:
            self.failures -= 1
            raise OSError("no memory")
        return [{"ROWS": np.array([batch.rows])} for _ in batch.waiters]


@contextmanager
def lanes(model: Model) -> Iterator[BackgroundLanes[Asked]]:
    made = BackgroundLanes[Asked](COLUMNS, model.prepare, model.compute)
    yield made
    made.close()


def test_a_model_that_never_has_such_requests_has_no_threads_for_them() -> None:
    before = threading.active_count()
    with lanes(Model()) as background:
        assert (background.waiting_rows, threading.active_count()) == (0, before)


def test_where_it_cannot_be_computed_the_request_fails_and_the_next_one_does_not() -> None:
    with lanes(Model(failures=1)) as background:
        first, second = Asked(), Asked()
        background.submit([first], 1)
        error = first.result()
        background.submit([second], 1)
        assert second.result() == {"ROWS": np.array([1])}

    assert isinstance(error, ExecutionError)
    assert "no memory" in str(error)


def test_requests_are_prepared_in_another_thread_and_one_that_cannot_be_fails_alone() -> None:
    model, wrong, right = Model(), Asked(fails=True), Asked()
    with lanes(model) as background:
        background.submit([wrong, right], 2)
        assert right.result() == {"ROWS": np.array([1])}
        assert isinstance(wrong.result(), RequestError)
        assert background.waiting_rows == 0
    assert threading.get_ident() not in model.threads


def test_whatever_fails_while_they_are_prepared_they_are_answered() -> None:
    asked = Asked()
    with lanes(Model(unprepared=True)) as background:
        background.submit([asked], 1)
        error = asked.result()
    assert isinstance(error, ExecutionError)
    assert "vocabulary" in str(error)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before
