"""The choice of the next batch: overtaking, no starvation, and no request lost or run twice."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.batching.batch_queue import MAX_PARTS, Batch, BatchQueue, Waiter
from python_backends.batching.plan import CostColumns

MAX_ROWS = 8


def cost_ms(rows: int, length: int) -> float:
    """Cost 1 ms for a sentence of 10, 10 ms for a page of 100: only equal lengths gain by batching; at least
    8 is charged.
    """
    return 0.1 + rows * max(length, 8) / 10


def waiting(lanes: int = 1) -> BatchQueue[str]:
    return BatchQueue(CostColumns(cost_ms, max_rows=MAX_ROWS), lanes=lanes)


def waiter(name: str, length: int, *, since_s: float = 0.0, rows: int = 1, deadline_s: float = inf) -> Waiter[str]:
    return Waiter(name, rows, length, since_s, deadline_s)


def batch_of(rows: int, length: int) -> Batch[str]:
    return Batch([waiter("running", length)] * rows, cost_ms(rows, length))


SENTENCE, PAGE = batch_of(1, 10), batch_of(1, 100)


def filled(waiters: Sequence[Waiter[str]], lanes: int = 1) -> BatchQueue[str]:
    queue = waiting(lanes)
    for one in waiters:
        queue.add(one)
    return queue


def names(batch: Batch[str] | None) -> list[str]:
    return [waiter.request for waiter in batch.waiters] if batch else []


def test_a_sentence_that_arrives_after_pages_is_next_once_one_page_has_run() -> None:
    pages = [waiter(f"page {index}", 100 + 10 * index) for index in range(5)]
    queue = filled([*pages, waiter("sentence", 10, since_s=0.010)])

    # In one lane: while a page ran for 10 ms.
    assert names(queue.take(0.020, [])) == ["sentence"]


def test_a_page_does_not_starve_behind_sentences_that_keep_coming() -> None:
    queue = filled([waiter("page", 100)])
    now_s, ran = 0.0, []
    while "page" not in ran:
        queue.add(waiter("sentence", 10, since_s=now_s))
        ran += names(queue.take(now_s, []))
        now_s += 0.001
        assert now_s < 1

    assert ran.count("sentence") >= 1


def test_many_short_ones_go_before_one_that_waits_as_long() -> None:
    queue = filled([waiter("page", 100), *(waiter(f"sentence {index}", 10) for index in range(4))])

    assert names(queue.take(0.0, [])) == [f"sentence {index}" for index in range(4)]
    assert names(queue.take(0.0, [])) == ["page"]
    assert queue.take(0.0, []) is None


@pytest.mark.parametrize(
    ("lanes", "running", "taken"),
    [
        pytest.param(1, [], ["sentence"], id="one-lane-free"),
        pytest.param(1, [PAGE], [], id="one-lane-busy"),
        pytest.param(2, [PAGE], ["sentence"], id="the-last-lane-is-for-what-is-short-beside-a-page"),
        pytest.param(2, [SENTENCE], [], id="and-not-for-its-like"),
        pytest.param(2, [batch_of(MAX_ROWS, 10)], [], id="nor-for-one-of-its-like-however-many-run"),
        pytest.param(2, [PAGE, SENTENCE], [], id="all-busy"),
        pytest.param(3, [SENTENCE], ["sentence"], id="two-lanes-free"),
        pytest.param(3, [SENTENCE, PAGE], [], id="the-last-of-three-beside-its-like"),
        pytest.param(3, [PAGE, PAGE], ["sentence"], id="the-last-of-three-beside-pages"),
    ],
)
def test_lanes(lanes: int, running: list[Batch[str]], taken: list[str]) -> None:
    assert names(filled([waiter("sentence", 10)], lanes).take(0.0, running)) == taken


def test_no_page_gets_the_last_lane_however_long_it_waits() -> None:
    queue = filled([waiter("page", 100), waiter("sentence", 10, since_s=9.99)], lanes=2)

    assert names(queue.take(10.0, [PAGE])) == ["sentence"]
    assert queue.take(10.0, [PAGE]) is None
    assert names(queue.take(10.0, [])) == ["page"]


def test_all_that_has_expired_is_taken_first_as_a_batch_that_costs_nothing() -> None:
    queue = filled(
        [waiter("late page", 100, deadline_s=1.0), waiter("late", 10, rows=2, deadline_s=0.5), waiter("in time", 10, deadline_s=1.5)]
    )

    expired = queue.take(1.0, []) or pytest.fail("nothing")

    assert (sorted(names(expired)), expired.cost_ms, queue.rows) == (["late", "late page"], 0.0, 1)
    assert names(queue.take(1.0, [])) == ["in time"]
    assert queue.take(9.0, []) is None


@pytest.mark.parametrize("running", [[], [PAGE], [PAGE, SENTENCE]])
def test_what_has_expired_needs_no_lane(running: list[Batch[str]]) -> None:
    queue = filled([waiter("late", 100, deadline_s=1.0), waiter("page", 100)], lanes=2)

    assert names(queue.take(0.9, [PAGE, SENTENCE])) == []
    assert names(queue.take(1.0, running)) == ["late"]


def test_deadlines_change_nothing_in_the_order_of_what_has_not_expired() -> None:
    lengths = [10, 100, 11, 120, 12, 300, 9]
    plain = filled([waiter(str(length), length) for length in lengths])
    hurried = filled([waiter(str(length), length, deadline_s=0.02 + 0.001 * length) for length in lengths])

    while expected := names(plain.take(0.01, [])):
        assert names(hurried.take(0.01, [])) == expected


def test_one_that_was_taken_before_its_deadline_expires_for_nobody_else() -> None:
    queue = filled([waiter("first", 10, deadline_s=1.0)])
    assert names(queue.take(0.5, [])) == ["first"]
    queue.add(waiter("second", 10, since_s=1.0, deadline_s=3.0))

    assert names(queue.take(2.0, [])) == ["second"]


def test_of_many_short_ones_as_many_overtake_as_the_last_lane_has_room_for() -> None:
    queue: BatchQueue[str] = BatchQueue(CostColumns(lambda rows, length: 1.0 + rows * length / 10, max_rows=MAX_ROWS), lanes=2)
    for _ in range(5):
        queue.add(waiter("sentence", 10))

    # All five in one batch would cost 6 ms.
    assert names(queue.take(0.0, [Batch([waiter("page", 120)], 13.0)])) == ["sentence"] * 2
    assert names(queue.take(0.0, [])) == ["sentence"] * 3


WAITERS = st.lists(st.builds(waiter, st.just(""), st.integers(1, 300), rows=st.integers(1, MAX_ROWS)), max_size=3 * MAX_PARTS)


@given(WAITERS)
def test_everything_is_taken_once_in_batches_with_room_however_much_waits(waiters: list[Waiter[str]]) -> None:
    queue = filled(waiters)
    taken: list[Waiter[str]] = []
    while batch := queue.take(1.0, []):
        assert batch.rows <= MAX_ROWS
        assert batch.cost_ms == pytest.approx(cost_ms(batch.rows, batch.length))
        assert batch.useful <= batch.padded
        taken += batch.waiters
        assert queue.rows == sum(one.rows for one in waiters) - sum(one.rows for one in taken)

    assert len(taken) == len(waiters)
    assert set(taken) == set(waiters)
    assert len(queue) == 0


def test_more_than_can_be_planned_is_planned_by_neighbours() -> None:
    queue = filled([waiter("", length) for length in range(10, 4 * MAX_PARTS + 10)])

    lengths = [one.length for one in (queue.take(0.0, []) or pytest.fail("nothing to run")).waiters]

    # Alone each would run by itself, as batches gain nothing here.
    assert lengths == [10, 11, 12, 13]


def test_at_once_is_for_what_nothing_could_overtake_and_finds_nobody_waiting() -> None:
    sentences = [waiter("b", 10), waiter("a", 10)]

    assert names(waiting(lanes=2).at_once(sentences[:1], [])) == ["b"]

    assert waiting(lanes=2).at_once([waiter("page", 100)], []) is None
    assert waiting(lanes=2).at_once([], []) is None
    assert waiting(lanes=2).at_once(sentences[:1], [SENTENCE]) is None
    assert names(waiting(lanes=2).at_once(sentences[:1], [PAGE])) == ["b"]
    assert waiting(lanes=2).at_once(sentences[:1], [PAGE, SENTENCE]) is None
    assert filled([waiter("page", 100)], lanes=2).at_once(sentences[:1], []) is None


def test_at_once_leaves_a_lane_to_what_comes_meanwhile() -> None:
    assert waiting(lanes=3).at_once([waiter("sentence", 10)], []) is None
    assert names(waiting(lanes=3).at_once([waiter("sentence", 10)], [SENTENCE])) == ["sentence"]


def test_at_once_keeps_the_callers_order_and_takes_only_what_is_one_batch() -> None:
    queue: BatchQueue[str] = BatchQueue(CostColumns(lambda rows, length: 1.0 + rows * length / 100, max_rows=MAX_ROWS), lanes=2)

    assert names(queue.at_once([waiter("longer", 12), waiter("shorter", 10)], [])) == ["longer", "shorter"]
    assert len(names(queue.at_once([waiter("", 10)] * MAX_ROWS, []))) == MAX_ROWS
    assert queue.at_once([waiter("", 10)] * (MAX_ROWS + 1), []) is None
    assert queue.at_once([waiter("", 10), waiter("", 250)], []) is None


HURRIED = st.builds(waiter, st.just(""), st.integers(1, 300), rows=st.integers(1, MAX_ROWS), deadline_s=st.floats(0.0, 2.0) | st.just(inf))


@given(st.lists(HURRIED, max_size=2 * MAX_PARTS), st.floats(0.01, 0.5))
def test_everything_is_taken_once_and_nothing_is_computed_after_its_deadline(waiters: list[Waiter[str]], step_s: float) -> None:
    queue, now_s = filled(waiters), 0.0
    taken: list[Waiter[str]] = []
    while batch := queue.take(now_s, []):
        assert {waiter.has_expired(now_s) for waiter in batch.waiters} == {batch.cost_ms == 0.0}
        taken += batch.waiters
        now_s += step_s

    assert sorted(map(id, taken)) == sorted(map(id, waiters))
    assert (len(queue), queue.rows) == (0, 0)
