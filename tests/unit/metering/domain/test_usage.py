from __future__ import annotations

from dataclasses import astuple, fields

import pytest

from control_plane.core.infer_call import Outcome
from control_plane.metering.domain.usage import COUNTED_AS, EVERY_DAY, Usage, UsageBatch, UsageKey, day_of, make_storable_key


def test_every_outcome_is_counted_as_something() -> None:
    assert set(COUNTED_AS) == set(Outcome)
    assert set(COUNTED_AS.values()) == {"requests", "failed", "refused"}
    assert [outcome for outcome in Outcome if COUNTED_AS[outcome] == "requests"] == [Outcome.ANSWERED]
    assert [outcome for outcome in Outcome if COUNTED_AS[outcome] == "refused"] == [Outcome.REFUSED]


def test_every_field_is_added_to_its_own() -> None:
    one, other = Usage(1, 2, 3, 4, 5, 6.5, 7, 8, 9), Usage(10, 20, 30, 40, 50, 60.0, 70, 80, 90)
    assert astuple(one + other) == (11, 22, 33, 44, 55, 66.5, 77, 88, 99)
    assert one + Usage() == one
    assert len(fields(Usage)) == len(astuple(one))


def test_a_batch_knows_how_many_requests_it_counts_however_they_ended() -> None:
    sums = tuple((UsageKey("2023-11-15", "a", model), Usage(1, 20, 300, rows=5000, cache_hits=1)) for model in "mn")
    assert UsageBatch("a", sums).requests == 642
    assert UsageBatch("b", ()).requests == 0


@pytest.mark.parametrize(
    ("ended_s", "day"),
    [
        pytest.param(0.0, "1970-01-01", id="epoch"),
        pytest.param(1_700_006_399.999, "2023-11-14", id="before-midnight"),
        pytest.param(1_700_006_400.0, "2023-11-15", id="midnight"),
        pytest.param(1_709_208_000.0, "2024-02-29", id="leap-day"),
    ],
)
def test_days_are_utcs(ended_s: float, day: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    assert day_of(ended_s) == day
    assert EVERY_DAY[0] < day < EVERY_DAY[1]


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        pytest.param("größe \0[", "größe \0[", id="odd"),
        pytest.param("", "", id="empty"),
        pytest.param("a\ud800b", "a?b", id="half-of-a-pair"),
        pytest.param("\ud83d\ude00", "??", id="two-halves-that-are-no-pair"),
    ],
)
def test_a_key_is_something_that_every_store_can_hold(name: str, stored: str) -> None:
    assert make_storable_key("2023-11-15", name, "m" + name) == UsageKey("2023-11-15", stored, "m" + stored)
    stored.encode()
