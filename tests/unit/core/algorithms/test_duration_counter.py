from __future__ import annotations

from control_plane.core.algorithms.duration_counter import DurationCounter


def test_a_duration_belongs_to_the_first_bucket_whose_bound_it_does_not_pass() -> None:
    counter = DurationCounter((0.5, 1.0))
    for took_s in (0.0, 0.5, 0.75, 1.0, 8.0):
        counter.add(took_s)
    assert (counter.buckets, counter.seconds) == ([2, 2, 1], 10.25)
