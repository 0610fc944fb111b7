"""What processes hold is read from the kernel, and a part of the samples is told by its medians."""

from __future__ import annotations

import os
import threading

import pytest

from perf.soak.held import GATEWAY, TRITON, Held, Sample, held, sampled, usual


def test_what_a_process_holds() -> None:
    found = held(os.getpid())
    assert found.keys() == {GATEWAY}
    assert found[GATEWAY].mib > 10
    assert found[GATEWAY].threads >= threading.active_count()
    with open(os.devnull):
        assert held(os.getpid())[GATEWAY].descriptors == found[GATEWAY].descriptors + 1


def test_the_usual_is_the_median_of_that_time() -> None:
    samples = [Sample(float(at), {TRITON: Held(mib, 10.0, 2.0)}) for at, mib in enumerate((500.0, 100.0, 900.0, 110.0, 1.0))]
    assert usual(samples, TRITON, 1.0, 3.0) == Held(110.0, 10.0, 2.0)
    with pytest.raises(ValueError, match="no median"):
        usual(samples, TRITON, 7.0, 9.0)


def test_samples_are_taken_until_the_end() -> None:
    with sampled(os.getpid(), 0.001) as samples:
        while len(samples) < 3:
            pass
    count = len(samples)
    assert [each.at_s for each in samples] == sorted(each.at_s for each in samples)
    assert len(samples) == count
