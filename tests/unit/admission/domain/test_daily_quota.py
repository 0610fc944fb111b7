from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.admission.domain.daily_quota import DAY_S, day_number, number_of_day, quota_wait_s

NOON_S = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("stored", "own", "share", "wait_s"),
    [
        pytest.param(0.0, 0.0, 1.0, None, id="nothing used"),
        pytest.param(60.0, 39.9, 1.0, None, id="a little left"),
        pytest.param(60.0, 40.0, 1.0, DAY_S / 2, id="used up by what is stored and what is not yet"),
        pytest.param(150.0, 0.0, 1.0, DAY_S / 2, id="used up by others"),
        pytest.param(60.0, 9.9, 0.25, None, id="a part of what is left"),
        pytest.param(60.0, 10.0, 0.25, 1.0, id="this process's part used up, the tenant's quota not: parts change within a second"),
        pytest.param(100.0, 0.0, 0.25, DAY_S / 2, id="used up whatever the part"),
    ],
)
def test_waiting_for_units(stored: float, own: float, share: float, wait_s: float | None) -> None:
    assert quota_wait_s(100.0, stored=stored, own=own, share=share, now_s=NOON_S) == wait_s


def test_a_quota_of_nothing_admits_nothing() -> None:
    assert quota_wait_s(0.0, stored=0.0, own=0.0, share=1.0, now_s=NOON_S) == DAY_S / 2


@given(moment=st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)))
def test_a_day_has_the_same_number_by_its_name_and_by_the_clock(moment: datetime) -> None:
    now_s = moment.replace(tzinfo=UTC).timestamp()
    assert number_of_day(moment.date().isoformat()) == day_number(now_s)
    wait_s = quota_wait_s(0.0, stored=0.0, own=0.0, share=1.0, now_s=now_s)
    assert wait_s is not None
    assert day_number(now_s + wait_s + 1e-3) == day_number(now_s) + 1
