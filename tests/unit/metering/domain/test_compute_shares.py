from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.metering.domain.compute_shares import estimate, share_out
from control_plane.triton.compute_time import NOTHING, Computed, OpenCharge


def answered(rows: float, ms: float) -> OpenCharge:
    return OpenCharge("t", "m", "m", answered_rows=rows, answered_ms=ms)


def failed(rows: float, ms: float) -> OpenCharge:
    return OpenCharge("t", "m", "m", failed_rows=rows, failed_ms=ms)


def left(rows: float) -> OpenCharge:
    return OpenCharge("t", "m", "m", left_rows=rows)


@pytest.mark.parametrize(
    ("computed", "charges", "units", "left_part", "rest"),
    [
        pytest.param(Computed(1, 10.0), [answered(1, 12.0)], [10.0], 0, NOTHING, id="alone: all of it"),
        pytest.param(Computed(1, 10.0), [answered(1, 20_000.0)], [10.0], 0, NOTHING, id="not what it waited"),
        pytest.param(Computed(8, 20.0), [answered(4, 99.0), answered(4, 99.0)], [10.0, 10.0], 0, NOTHING, id="of a batch by rows"),
        pytest.param(
            Computed(101, 10_100.0),
            [answered(100, 150.0), answered(1, 10_010.0)],
            [150.0, 9950.0],
            0,
            NOTHING,
            id="slow beside many quick ones, which hide some of it by their own waiting",
        ),
        pytest.param(
            Computed(101, 10_100.0),
            [answered(100, 100.0), answered(1, 10_010.0)],
            [100.0, 10_000.0],
            0,
            NOTHING,
            id="nobody pays for more than its time there",
        ),
        pytest.param(Computed(4, 40.0), [answered(1, 99.0)], [10.0], 0, Computed(3, 30.0), id="others' rows are others'"),
        pytest.param(
            Computed(2, 20_000.0), [answered(1, 1.0)], [1.0], 0, Computed(1, 19_999.0), id="one that has not ended has been computed"
        ),
        pytest.param(Computed(2, 20.0), [answered(1, 99.0), left(1)], [10.0, 10.0], 1, NOTHING, id="what was abandoned was computed"),
        pytest.param(Computed(1, 10.0), [answered(1, 99.0), left(1)], [10.0, 0.0], 0, NOTHING, id="or not yet"),
        pytest.param(Computed(2, 20.0), [answered(1, 99.0), left(4)], [10.0, 10.0], 0.25, NOTHING, id="or a part of it"),
        pytest.param(
            Computed(1 + 2**-52, 10.0),
            [answered(1, 99.0), left(1), left(1)],
            [pytest.approx(10.0), pytest.approx(0.0), pytest.approx(0.0)],
            pytest.approx(2**-53),
            NOTHING,
            id="parts of rows that vanish beside whole ones",
        ),
        pytest.param(Computed(1, 10.0), [failed(1, 12.0)], [10.0], 1, NOTHING, id="a model's error took time"),
        pytest.param(Computed(1, 10.0), [answered(1, 12.0), failed(1, 0.4)], [10.0, 0.0], 0, NOTHING, id="a refusal took none"),
        pytest.param(
            Computed(3, 30.0), [failed(1, 0.4), left(1)], [0.4, pytest.approx(14.8)], 1, Computed(1, pytest.approx(14.8)), id="all kinds"
        ),
        pytest.param(Computed(1, 10.0), [answered(768, 12.0)], [10.0], 0, NOTHING, id="more rows than Triton counts: never more than all"),
        pytest.param(
            Computed(1, 10.0), [answered(1, 4.0)], [4.0], 0, Computed(0, 6.0), id="what is over waits for whose end is told later"
        ),
        pytest.param(Computed(5, 50.0), [], [], 0, Computed(5, 50.0), id="nobody's"),
        pytest.param(NOTHING, [answered(1, 9.0), left(2)], [0.0, 0.0], 0, NOTHING, id="nothing to share"),
    ],
)
def test_shares(computed: Computed, charges: list[OpenCharge], units: list[float], left_part: float, rest: Computed) -> None:
    shares = share_out(computed, charges)
    assert list(shares.units) == pytest.approx(units)
    assert shares.left_part == left_part
    assert (shares.rest.rows, shares.rest.ms) == (pytest.approx(rest.rows), rest.ms)


@pytest.mark.parametrize(
    ("computed", "charges", "late_rows", "units", "left_part", "still_late"),
    [
        pytest.param(Computed(2, 20.0), [answered(3, 99.0)], 0, [20.0], 0, 1, id="Triton has yet to count one"),
        pytest.param(Computed(1, 0.4), [left(1)], 1, [0.0], 0, 0, id="which is not the one that was left"),
        pytest.param(Computed(2, 90.0), [left(1)], 1, [90.0], 1, 0, id="both"),
        pytest.param(Computed(1, 10.0), [answered(1, 99.0)], 1, [10.0], 0, 1, id="always one behind: nothing is lost"),
    ],
)
def test_rows_that_are_counted_after_their_answer_are_not_those_of_who_left(
    computed: Computed, charges: list[OpenCharge], late_rows: float, units: list[float], left_part: float, still_late: float
) -> None:
    shares = share_out(computed, charges, late_rows=late_rows)
    assert (list(shares.units), shares.left_part, shares.late_rows) == (units, left_part, still_late)


some = st.floats(0, 1e6)
charges = st.builds(
    OpenCharge, st.just("t"), st.just("m"), st.just("m"), st.integers(0, 50), some, st.integers(0, 50), some, st.integers(0, 50)
)


@given(st.builds(Computed, st.integers(0, 200), some), st.lists(charges, max_size=6))
def test_nothing_is_charged_twice_or_lost_and_nobody_pays_for_more_than_its_time(computed: Computed, open_: list[OpenCharge]) -> None:
    shares = share_out(computed, open_)
    assert sum(shares.units) + shares.rest.ms == pytest.approx(computed.ms)
    assert 0 <= shares.left_part <= 1
    assert 0 <= shares.rest.rows <= computed.rows
    for charge, units in zip(open_, shares.units, strict=True):
        assert units >= 0
        if not (charge.left_rows and shares.left_part):
            assert units <= (charge.answered_ms + charge.failed_ms) * (1 + 1e-9)


def test_an_estimate_is_the_mean_but_never_more_than_the_time() -> None:
    assert estimate(answered(3, 100.0), 10.0) == 30.0
    assert estimate(answered(3, 20.0), 10.0) == 20.0
