from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.domain.inference import Door, Outcome
from control_plane.domain.usage import COUNTED_AS, EVERY_DAY, Usage, UsageEvent, UsageKey, day_of, sums_of, usage_of

EVENT = UsageEvent(1_700_049_600.0, "a", "k", "r", "m", Door.HTTP, Outcome.ANSWERED, 0.1, 2, 3, 0.5)


def test_every_outcome_is_counted_as_something() -> None:
    assert set(COUNTED_AS) == set(Outcome)
    for outcome in Outcome:
        usage = usage_of([replace(EVENT, outcome=outcome)])
        assert usage.requests + usage.failed + usage.refused == 1


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome.ANSWERED, Usage(requests=1, rows=2, elements=3, compute_units=0.5)),
        (Outcome.REFUSED, Usage(refused=1, rows=2, elements=3, compute_units=0.5)),
        (Outcome.UPSTREAM_ERROR, Usage(failed=1, rows=2, elements=3, compute_units=0.5)),
        (Outcome.ABANDONED, Usage(failed=1, rows=2, elements=3, compute_units=0.5)),
    ],
)
def test_an_event_counts_as(outcome: Outcome, expected: Usage) -> None:
    assert usage_of([replace(EVENT, outcome=outcome)]) == expected


def test_a_cache_hit_is_a_request_too() -> None:
    usage = usage_of([replace(EVENT, cache_hit=True)])
    assert (usage.requests, usage.cache_hits) == (1, 1)


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


def test_sums_are_by_day_tenant_and_model() -> None:
    events = [EVENT, replace(EVENT, tenant="b"), replace(EVENT, model="n"), replace(EVENT, ended_s=0.0), EVENT]
    assert {key: usage.requests for key, usage in sums_of(events).items()} == {
        UsageKey("2023-11-15", "a", "m"): 2,
        UsageKey("2023-11-15", "b", "m"): 1,
        UsageKey("2023-11-15", "a", "n"): 1,
        UsageKey("1970-01-01", "a", "m"): 1,
    }


def test_what_no_store_can_hold_is_made_to_fit() -> None:
    ((key, usage),) = sums_of([replace(EVENT, tenant="a\ud800", rows=2**70, elements=2**64)]).items()
    assert key.tenant == "a?"
    assert (usage.rows, usage.elements) == (2**32, 2**32)


_EVENTS = st.builds(
    replace,
    st.just(EVENT),
    outcome=st.sampled_from(Outcome),
    tenant=st.sampled_from("ab"),
    rows=st.integers(0, 9),
    cache_hit=st.booleans(),
)


@given(st.lists(_EVENTS), st.integers(0, 20))
def test_sums_do_not_depend_on_how_events_are_batched(events: list[UsageEvent], split: int) -> None:
    whole = sums_of(events)
    parts: dict[UsageKey, Usage] = {}
    for part in (events[:split], events[split:]):
        for key, usage in sums_of(part).items():
            parts[key] = parts.get(key, Usage()) + usage
    assert parts == whole
    assert sum(usage.requests + usage.failed + usage.refused for usage in whole.values()) == len(events)
