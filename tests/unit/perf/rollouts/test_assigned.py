from __future__ import annotations

import pytest

from perf.rollouts.assigned import Period, misassigned, torn
from perf.rollouts.callers import Answered
from perf.rollouts.fleet import periods_of

BEFORE = Period(0.0, 100.0, "", "old", "old", 0)
CANARY = Period(100.0, 200.0, "id", "old", "new", 5000)
AFTER = Period(200.0, 300.0, "id", "old", "new", 10_000)
PERIODS = [BEFORE, CANARY, AFTER]
USERS = [f"user-{number}" for number in range(200)]
NEWS = [user for user in USERS if CANARY.model_of(user) == "new"]
OLDS = [user for user in USERS if CANARY.model_of(user) == "old"]


def answered(unit: str, model: str, at_s: float, *, way: str = "http") -> Answered:
    return Answered("plain", way, unit, at_s, at_s + 0.01, model)


def test_the_hash_shares_them_out() -> None:
    assert 60 < len(NEWS) < 140
    assert {BEFORE.model_of(user) for user in USERS} == {"old"}
    assert {AFTER.model_of(user) for user in USERS} == {"new"}


@pytest.mark.parametrize(
    ("unit", "model", "at_s", "is_wrong"),
    [
        (NEWS[0], "new", 150.0, False),
        (NEWS[0], "old", 150.0, True),
        (OLDS[0], "old", 150.0, False),
        (OLDS[0], "new", 150.0, True),
        (OLDS[0], "new", 50.0, True),
        (NEWS[0], "old", 100.5, False),
        (OLDS[0], "old", 200.5, False),
        (OLDS[0], "old", 201.5, True),
        (OLDS[0], "third", 150.0, True),
    ],
)
def test_who_may_have_answered(unit: str, model: str, at_s: float, is_wrong: bool) -> None:
    assert bool(list(misassigned([answered(unit, model, at_s)], PERIODS, may_stand_in=False))) is is_wrong


def test_the_stable_model_may_stand_in_but_no_other() -> None:
    of_new, of_old = answered(NEWS[0], "old", 150.0), answered(OLDS[0], "new", 150.0)
    assert list(misassigned([of_new, of_old], PERIODS, may_stand_in=True)) == [of_old]


def test_what_failed_was_answered_by_nobody() -> None:
    assert list(misassigned([answered("u", "", 150.0)], PERIODS, may_stand_in=False)) == []


@pytest.mark.parametrize(
    ("way", "models", "at_s", "is_torn"),
    [
        ("sequence", ("old", "old"), 150.0, False),
        ("sequence", ("old", "new"), 150.0, True),
        ("sequence", ("old", "new"), 100.0, True),
        ("stream", ("old", "new"), 150.0, True),
        ("stream", ("old", "new"), 100.0, False),
    ],
)
def test_sequences_have_one_model_and_streams_as_long_as_nothing_changes(
    way: str, models: tuple[str, str], at_s: float, is_torn: bool
) -> None:
    asked = [answered("u", model, at_s + number / 10, way=way) for number, model in enumerate(models)]
    assert [*torn(asked, PERIODS)] == (["u"] if is_torn else [])


def test_periods_follow_from_a_rollouts_events() -> None:
    events = [{"at_s": at_s, "weight": weight} for at_s, weight in ((5.0, 0), (20.0, 0), (30.0, 2000), (40.0, 0))]
    rollout = {"id": "id", "stable": "old", "model": "new", "events": events}
    made = periods_of(rollout, now="old", since_s=10.0, until_s=50.0)
    assert [(each.from_s, each.to_s, each.weight) for each in made] == [
        (10.0, 20.0, 0),
        (20.0, 30.0, 0),
        (30.0, 40.0, 2000),
        (40.0, 50.0, 0),
    ]
    assert periods_of(rollout, now="new", since_s=45.0, until_s=50.0) == [Period(45.0, 50.0, "", "new", "new", 0)]
