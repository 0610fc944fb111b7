"""Counters of batches, also from several threads."""

from __future__ import annotations

import threading
from dataclasses import fields

import pytest

from python_backends.batching.batch_queue import Batch, Waiter
from python_backends.batching.counts import COUNTERS, Counts, Tally, of_batch


def test_every_count_has_a_metric_and_a_description() -> None:
    assert [field.name for field in fields(Counts)] == [
        name.removesuffix("_total").replace("queue_seconds", "queue_s").replace("compute_seconds", "compute_s") for name in COUNTERS
    ]
    assert all(COUNTERS.values())


def test_a_batch_counts_what_it_computed_and_what_of_it_was_asked_for() -> None:
    batch = Batch([Waiter("a", 2, 10, 1.0), Waiter("b", 1, 4, 3.0)], cost_ms=1.0)

    assert of_batch(batch, began_s=4.0, ended_s=4.5) == Counts(1, 2, 3, 24, 30, 4.0, 0.5)


def test_a_tally_gives_each_count_once() -> None:
    tally = Tally()
    assert tally.take() == {}

    tally.add(Counts(1, 2, 3, 4, 5, 0.5, 0.25))
    tally.add(Counts(1, 1, 1, 1, 1, 0.5, 0.25))

    assert list(tally.take().values()) == [2, 3, 4, 5, 6, 1.0, 0.5, 0, 0]
    assert tally.take() == {}


def test_what_was_not_computed_is_told_where_nothing_else_was() -> None:
    tally = Tally()

    tally.add(Counts(cancelled=1, expired=2))

    assert (tally.take()["expired_total"], tally.take()) == (2, {})


@pytest.mark.parametrize("threads", [4])
def test_nothing_is_lost_between_threads(threads: int) -> None:
    tally = Tally()
    adding = [threading.Thread(target=lambda: [tally.add(Counts(batches=1)) for _ in range(500)]) for _ in range(threads)]
    for thread in adding:
        thread.start()
    taken = 0.0
    while any(thread.is_alive() for thread in adding):
        taken += tally.take().get("batches_total", 0)
    for thread in adding:
        thread.join()

    assert taken + tally.take().get("batches_total", 0) == 500 * threads
