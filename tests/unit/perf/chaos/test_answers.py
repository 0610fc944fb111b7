"""What is made of callers' answers."""

from __future__ import annotations

import math

import pytest

from perf.chaos.answers import (
    BROKEN_OFF,
    CHAT_STREAM,
    CUT_SHORT,
    GENERATE_STREAM,
    HUNG,
    LOST,
    MODEL_STREAM,
    ONCE,
    REFUSED,
    REPEATABLE,
    Answer,
    Counted,
    Streamed,
    counted,
    have_all_answered,
    last_failure_s,
    said,
    streamed,
)

ANSWERS = [
    Answer(REPEATABLE, 0.0, 0.5, "before the fault"),
    Answer(REPEATABLE, 0.9, 1.2),
    Answer(REPEATABLE, 1.1, 2.5, "503 in 12.5 s"),
    Answer(ONCE, 1.5, 4.0),
    Answer(ONCE, 2.0, 3.0, "503 in 7 s"),
    Answer("who sends poison", 2.0, 9.0, "500 died"),
]


def test_counts_are_of_the_harmless_since_the_fault() -> None:
    assert counted(ANSWERS, 1.0) == Counted(
        asked=4,
        failed=2,
        failed_repeatable=1,
        refused_repeatable=0,
        last_failure_s=2.0,
        longest_s=2.5,
        longest_repeatable_s=pytest.approx(0.3),
        slow_until_s=1.0,
    )


def test_who_was_told_when_to_come_again_is_counted_among_those_that_failed() -> None:
    found = counted([*ANSWERS, Answer(REPEATABLE, 1.5, 2.0, f"{REFUSED} 503 busy"), Answer(ONCE, 1.5, 2.0, f"{REFUSED} 503 busy")], 1.0)
    assert (found.failed, found.failed_repeatable, found.refused_repeatable) == (4, 2, 1)


STREAMS = [
    Answer(CHAT_STREAM, 0.0, 0.9, "before the fault"),
    Answer(CHAT_STREAM, 1.0, 3.0),
    Answer(CHAT_STREAM, 1.0, 2.0, f"{REFUSED} 503 busy"),
    Answer(GENERATE_STREAM, 1.0, 2.0, "500 died"),
    Answer(GENERATE_STREAM, 1.0, 2.5, f"{BROKEN_OFF} died"),
    Answer(MODEL_STREAM, 1.0, 2.0, f"{LOST} after 3 pieces"),
    Answer(MODEL_STREAM, 1.0, 4.0, f"{HUNG} 3 s"),
    Answer(MODEL_STREAM, 1.0, 2.0, f"{CUT_SHORT} after 3 pieces"),
    Answer(ONCE, 1.0, 9.0, "500 died"),
]


def test_of_streams_it_is_counted_how_they_ended() -> None:
    assert streamed(STREAMS, 1.0) == Streamed(
        streams=7,
        streams_refused=1,
        streams_failed=1,
        streams_broken_off=1,
        streams_lost=2,
        streams_cut_short=1,
        streams_last_failure_s=3.0,
        streams_longest_s=2.0,
    )
    assert counted(STREAMS, 1.0).asked == 1


def test_without_failures_there_is_no_last_one() -> None:
    found = counted([Answer(ONCE, 1.0, 1.1)], 1.0)
    assert (found.asked, found.failed) == (1, 0)
    assert math.isnan(found.last_failure_s)
    assert math.isnan(found.slow_until_s)


def test_texts_that_differ_in_figures_are_one_and_statuses_stay() -> None:
    assert said([*ANSWERS, Answer(ONCE, 2.0, 3.0, "503 in 8 s")], 1.0) == {
        "once: 503 in N s": 2,
        "repeatable: 503 in N s": 1,
        "who sends poison: 500 died": 1,
    }


def test_the_folder_of_a_drill_is_no_difference() -> None:
    assert said([Answer(ONCE, 0.0, 1.0, "503 /tmp/tidegate-chaos-x7_/disk is full")], 0.0) == {"once: 503 .../disk is full": 1}


def test_a_status_stays_where_one_is_told_when_to_come_again() -> None:
    assert said([Answer(ONCE, 0.0, 1.0, f"{REFUSED} 503 in 12 s")], 0.0) == {f"once: {REFUSED} 503 in N s": 1}


def test_a_long_text_is_cut() -> None:
    (text,) = said([Answer(ONCE, 0.0, 1.0, "x" * 1000)], 0.0)
    assert len(text) < 200


@pytest.mark.parametrize(("at_least", "have"), [(1, True), (2, False)])
def test_each_kind_has_to_be_answered(at_least: int, have: bool) -> None:
    assert have_all_answered(ANSWERS, (REPEATABLE, ONCE), at_least) is have


def test_the_last_failure_is_of_the_harmless() -> None:
    assert last_failure_s(ANSWERS) == 3.0
    assert last_failure_s(STREAMS[:7]) == 4.0, "a stream is one of them"
    assert last_failure_s([]) == -math.inf
