"""An open loop in which neither protocol is favoured by when its requests come."""

from __future__ import annotations

from random import Random

import pytest

from perf.chaos.overload import arrivals

PER_S, SERVICE_S = 100.0, 0.03


def parts(later_s: dict[str, float]) -> dict[str, float]:
    """Of what one server takes that is three times overloaded: whoever comes first once it is free; `later_s` is a protocol's way."""
    taken, free_s = {"http": 0, "grpc": 0}, 0.0
    for at_s, protocol in sorted((at_s + later_s.get(protocol, 0.0), protocol) for at_s, protocol in arrivals(Random(3), PER_S, 300.0)):
        if at_s >= free_s:
            taken[protocol] += 1
            free_s = at_s + SERVICE_S
    return {protocol: count / sum(taken.values()) for protocol, count in taken.items()}


@pytest.mark.parametrize("late", ["http", "grpc"])
def test_a_protocol_whose_client_is_slower_gets_no_more_and_no_less_of_a_server(late: str) -> None:
    """By turns, 10 ms apart, the one that is 4 ms late would follow the other after 14 ms, and be followed after 6."""
    assert parts({late: 0.004})[late] == pytest.approx(0.5, abs=0.03)


def test_as_many_come_as_were_asked_for_in_order_and_the_same_ones_each_time() -> None:
    times_s = [at_s for at_s, _ in arrivals(Random(3), PER_S, 300.0)]
    assert len(times_s) == pytest.approx(30_000, rel=0.03)
    assert times_s == sorted(times_s)
    assert times_s[-1] < 300.0
    assert list(arrivals(Random(3), PER_S, 9.0)) == list(arrivals(Random(3), PER_S, 9.0))
