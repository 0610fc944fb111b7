from __future__ import annotations

import math
from heapq import heapify, heappop, heappush

import pytest

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
    assert [rates.promise("t", ended=3, now_s=now_s) for now_s in (4.0, 60.0, 5000.0)] == [5.0, 60.0, 600.0]
    rates.promise("u", ended=0, now_s=0.0)
    assert [rates.promise("u", ended=1, now_s=1000.0) for _ in range(3)] == [600.0, 600.0, 600.0]


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("rate", [20.0, 1.0, 0.2])
def test_four_fifths_of_those_who_obey_find_room_by_whichever_process_they_were_refused(rate: float, processes: int) -> None:
    """For a minute ten times as many come as jobs end, to one process after the other."""
    rates, bound = [DrainRate() for _ in range(processes)], max(5, int(5 * rate))
    coming = [(number / rate / 10, number, False) for number in range(int(60 * 10 * rate))]
    heapify(coming)
    open_jobs, ended, next_end_s, returned, found_room = 0, 0, math.inf, 0, 0
    while coming:
        now_s, number, is_back = heappop(coming)
        while next_end_s <= now_s:
            ended, open_jobs = ended + 1, open_jobs - 1
            next_end_s = next_end_s + 1 / rate if open_jobs else math.inf
        returned += is_back
        if open_jobs < bound:
            open_jobs, found_room, next_end_s = open_jobs + 1, found_room + is_back, min(next_end_s, now_s + 1 / rate)
        else:
            wait_s = rates[number % processes].promise("t", ended=ended, now_s=now_s, processes=processes)
            heappush(coming, (now_s + math.ceil(wait_s), number, True))
    assert found_room >= 0.8 * returned > 0
