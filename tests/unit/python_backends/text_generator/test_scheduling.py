"""Who joins the batch and how much of which prompt is read: bounded, in order, and nobody waits for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.text_generator.scheduling import NOBODY_WRITES, Limits, joining, prompt_shares

LIMITS = Limits(max_sequences=4, kv_cache_tokens=100, prefill_tokens=16)


@pytest.mark.parametrize(
    ("waiting", "sequences", "reserved", "expected"),
    [
        pytest.param([], 0, 0, 0, id="nobody"),
        pytest.param([50, 50, 1], 0, 0, 2, id="as-many-as-the-cache-holds"),
        pytest.param([1] * 9, 1, 1, 3, id="as-many-as-there-are-places"),
        pytest.param([90, 1], 1, 20, 0, id="nobody-overtakes-the-first"),
        pytest.param([100], 0, 0, 1, id="the-largest-fits-alone"),
    ],
)
def test_who_joins(waiting: list[int], sequences: int, reserved: int, expected: int) -> None:
    assert joining(waiting, sequences=sequences, reserved=reserved, limits=LIMITS) == expected


@given(st.lists(st.integers(1, 500), min_size=1, max_size=20), st.integers(0, 8))
def test_a_step_reads_no_more_than_its_limit_and_always_something(unread: list[int], writing: int) -> None:
    shares = prompt_shares(unread, writing=writing, limits=LIMITS)
    budget = LIMITS.prefill_tokens * (1 if writing else NOBODY_WRITES)

    assert all(0 <= share <= left for share, left in zip(shares, unread, strict=True))
    assert sum(shares) == min(budget, sum(unread))
    # The oldest gets at least half, so it is read to its end however many come after it.
    assert shares[0] >= min(unread[0], budget // 2)


def test_a_short_prompt_does_not_wait_for_the_long_ones_before_it() -> None:
    assert prompt_shares([400, 400, 6], writing=1, limits=LIMITS) == [10, 0, 6]


def test_of_one_token_a_step_the_oldest_gets_it() -> None:
    limits = Limits(max_sequences=4, kv_cache_tokens=100, prefill_tokens=1)

    assert prompt_shares([9, 3], writing=1, limits=limits) == [1, 0]
    assert prompt_shares([9], writing=1, limits=limits) == [1]
