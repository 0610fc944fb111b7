from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.auth.domain.auth_backoff import AttemptLimits, AuthBackoff

LIMITS = AttemptLimits(failures=10, within_s=60.0, first_refusal_s=1.0, max_refusal_s=60.0, max_sources=10_000)
SMALL = AttemptLimits(failures=3, within_s=60.0, max_sources=5)
SOURCE = "192.0.2.1"

Attempt = tuple[str, float]
ATTEMPTS = st.lists(
    st.tuples(st.sampled_from([f"192.0.2.{number}" for number in range(8)]), st.floats(min_value=0, max_value=30)), max_size=80
)
"""Strategy: the sources of attempts, each with the seconds since the attempt before."""


def fail(attempts: AuthBackoff, times: int, *, source: str = SOURCE, now_s: float = 0.0) -> float:
    refused_s = 0.0
    for _ in range(times):
        refused_s = attempts.count(source, now_s)
    return refused_s


@pytest.mark.parametrize(
    ("failures", "refused_s"),
    [
        pytest.param(0, 0, id="none"),
        pytest.param(9, 0, id="nine are mistakes"),
        pytest.param(10, 1, id="ten are not"),
        pytest.param(11, 2, id="each further one doubles it"),
        pytest.param(15, 32, id="the last below the bound"),
        pytest.param(16, 60, id="bounded"),
        pytest.param(3000, 60, id="thousands that came at the same moment do not overflow"),
    ],
)
def test_refusals_by_failures_at_one_moment(failures: int, refused_s: float) -> None:
    attempts = AuthBackoff(LIMITS)
    assert fail(attempts, failures) == refused_s
    assert attempts.refused_for_s(SOURCE, 0.0) == refused_s
    assert attempts.refused_for_s(SOURCE, refused_s / 2) == refused_s / 2
    assert attempts.refused_for_s(SOURCE, refused_s) == 0


@pytest.mark.parametrize(
    ("between_s", "is_refused"), [pytest.param(6.0, True, id="ten within a minute"), pytest.param(6.7, False, id="nine a minute, for ever")]
)
def test_only_what_fails_often_is_refused(between_s: float, is_refused: bool) -> None:
    attempts = AuthBackoff(LIMITS)
    assert any(attempts.count(SOURCE, number * between_s) > 0 for number in range(1000)) is is_refused


def test_who_goes_on_is_soon_let_try_once_a_minute() -> None:
    attempts, now_s, moments = AuthBackoff(LIMITS), 0.0, []
    while now_s < 3600:
        now_s += attempts.refused_for_s(SOURCE, now_s)
        attempts.count(SOURCE, now_s)
        moments.append(now_s)
    assert len(moments) < 10 + 6 + 60


def test_a_quiet_minute_after_a_refusal_ends_it() -> None:
    attempts = AuthBackoff(LIMITS)
    assert fail(attempts, 12) == 4
    assert attempts.count(SOURCE, 63.9) == 8, "within a minute of the refusal's end"
    assert attempts.count(SOURCE, 63.9 + 8 + 60) == 0
    assert fail(attempts, 8, now_s=140) == 0
    assert attempts.count(SOURCE, 140) == 1, "as at first"


def test_failed_checks_are_bounded_by_a_bucket_that_refills() -> None:
    attempts, checks = AuthBackoff(LIMITS), 0
    for tick in range(1000):  # of 10 ms
        now_s = tick / 100
        for _ in range(20):
            if attempts.checks_refused_for_s(SOURCE, now_s) == 0:
                attempts.count_check(SOURCE, now_s)
                checks += 1
    assert 50 + 99 <= checks <= 50 + 101
    wait_s = attempts.checks_refused_for_s(SOURCE, 9.99)
    assert 0 < wait_s <= 0.1
    assert attempts.checks_refused_for_s(SOURCE, 9.99 + wait_s) == 0
    assert attempts.checks_refused_for_s("192.0.2.2", 10.0) == 0
    assert attempts.refused_for_s(SOURCE, 10.0) == 0, "each is counted apart"


@pytest.mark.parametrize(
    ("failing", "asking", "are_one"),
    [
        pytest.param("192.0.2.1", "192.0.2.1", True, id="the same"),
        pytest.param("192.0.2.1", "192.0.2.2", False, id="neighbours"),
        pytest.param("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", True, id="one IPv6 network"),
        pytest.param("2001:db8:0:1::1", "2001:db8:0:2::1", False, id="another"),
        pytest.param("192.0.2.1", "::ffff:192.0.2.1", True, id="IPv4 as a socket for both says it"),
        pytest.param("::ffff:192.0.2.1", "::ffff:192.0.2.2", False, id="of which each is one"),
        pytest.param("fe80::1%eth0", "fe80::2%eth1", True, id="zones do not count"),
        pytest.param("", "", True, id="a Unix socket"),
        pytest.param("", "192.0.2.1", False, id="which is no address"),
        pytest.param("0.0.0.1", "::1", False, id="numbers of two kinds"),
    ],
)
def test_what_counts_as_one_source(failing: str, asking: str, are_one: bool) -> None:
    attempts = AuthBackoff(LIMITS)
    fail(attempts, 10, source=failing)
    assert (attempts.refused_for_s(asking, 0.0) > 0) is are_one


def test_the_one_that_failed_longest_ago_is_forgotten_first() -> None:
    attempts = AuthBackoff(SMALL)
    for number in range(5):
        fail(attempts, 3, source=f"192.0.2.{number}")
    attempts.count("192.0.2.0", 0.0)
    attempts.count("198.51.100.1", 0.0)
    assert [attempts.refused_for_s(f"192.0.2.{number}", 0.0) > 0 for number in range(5)] == [True, False, True, True, True]
    assert len(attempts) == 5


def test_millions_of_sources_take_bounded_memory() -> None:
    attempts = AuthBackoff(AttemptLimits(max_sources=100))
    for number in range(2000):
        for _ in range(20):
            attempts.count(f"2001:db8:{number:x}::1", 0.0)
        attempts.refused_for_s(f"2001:db9:{number:x}::1", 0.0)
        assert len(attempts) <= 100
    assert all(len(source.failed_s) <= 10 for source in attempts._sources.values())


@given(ATTEMPTS)
def test_invariants_of_any_history(history: list[Attempt]) -> None:
    """Memory is bounded; a source that has not failed three times within a minute is not refused; no refusal
    exceeds a minute.
    """
    attempts, failed_s, now_s = AuthBackoff(SMALL), dict[str, list[float]](), 0.0
    for source, since_s in history:
        now_s += since_s
        if attempts.refused_for_s(source, now_s) > 0:
            continue
        was_slowed = _was_ever_full(failed_s.setdefault(source, []))
        failed_s[source].append(now_s)
        refused_s = attempts.count(source, now_s)
        assert 0 <= refused_s <= 60
        assert len(attempts) <= 5
        assert refused_s == 0 or was_slowed or _was_ever_full(failed_s[source])
        assert attempts.refused_for_s(source, now_s) == pytest.approx(refused_s)
        assert attempts.refused_for_s("203.0.113.9", now_s) == 0, "who has never failed"


@given(st.lists(st.floats(min_value=30.1, max_value=1000), max_size=50), ATTEMPTS)
def test_a_quiet_source_is_never_refused_whatever_the_others_do(own: list[float], others: list[Attempt]) -> None:
    attempts, now_s = AuthBackoff(SMALL), 0.0
    for pause_s in own:  # from the first of three to the third is more than a minute
        for source, _ in others:
            if attempts.refused_for_s(source, now_s) == 0:
                attempts.count(source, now_s)
        now_s += pause_s
        assert attempts.refused_for_s("203.0.113.9", now_s) == 0
        assert attempts.count("203.0.113.9", now_s) == 0


def _was_ever_full(failed_s: list[float]) -> bool:
    return any(third - first < 60 for first, third in zip(failed_s, failed_s[2:], strict=False))
