from __future__ import annotations

from control_plane.jobs.domain.drain_rate import DrainRate


def test_those_who_are_refused_are_told_places_one_after_the_other() -> None:
    rates = DrainRate()
    assert rates.promise("t", ended=0, now_s=0.0) == 5.0, "nothing is known yet"

    told = [rates.promise("t", ended=10, now_s=5.0) for _ in range(4)]

    assert told == [1.0, 1.0, 1.5, 2.0], "two jobs end in a second, so each finds room half a second after the one before"
    assert rates.promise(None, ended=10, now_s=5.0) == 5.0


def test_where_nothing_ends_the_wait_is_long_and_bounded() -> None:
    rates = DrainRate()
    rates.promise("t", ended=3, now_s=0.0)
    assert rates.promise("t", ended=3, now_s=4.0) == 10.0
    rates.promise("u", ended=0, now_s=0.0)
    assert [rates.promise("u", ended=1, now_s=1000.0) for _ in range(3)] == [600.0, 600.0, 600.0]
