from __future__ import annotations

from typing import NoReturn

import pytest

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import ModelFacts, Replica, Server
from control_plane.fleet.view.idle_waiters import IdleWaiters
from control_plane.fleet.view.reservations import Reservation
from control_plane.models.domain.description import ModelSpec
from tests.fakes import FakeUpstream


class Bench:
    """A replica on a server, with a clock that a test sets."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self.facts = ModelFacts(ModelSpec("m"), 1, load_s=1.0, service_s=1.0)
        self.replica = Replica("m", ModelState.READY, 1, 0.0)
        self.server = Server("s", 10, replicas={"m": self.replica})
        self.idle_waiters = IdleWaiters()

    def now_s(self) -> float:
        return self.at_s

    def released(self) -> None: ...

    def claim(self) -> Reservation:
        return Reservation(self, FakeUpstream(), self.server, self.replica, self.facts)

    def release(self, claim: Reservation, at_s: float) -> None:
        self.at_s = at_s
        claim.release(answered=True)


def test_a_request_that_nobody_hampered_says_how_long_it_took() -> None:
    bench = Bench()
    claim = bench.claim()
    bench.release(claim, 2.0)
    assert claim.unshared_service_s == 2.0
    assert bench.facts.service_s == pytest.approx(1.2)


def test_one_that_came_behind_others_or_before_them_does_not() -> None:
    bench = Bench()
    first, second = bench.claim(), bench.claim()
    bench.release(first, 2.0)
    bench.release(second, 4.0)
    assert first.unshared_service_s is second.unshared_service_s is None
    assert bench.facts.service_s == pytest.approx(1.36), "two seconds each"


def test_a_replica_that_never_runs_empty_is_measured_by_its_departures() -> None:
    bench = Bench()
    claims = [bench.claim() for _ in range(2)]
    for turn in range(1, 30):
        claims.append(bench.claim())
        bench.release(claims.pop(0), 3.0 * turn)
    assert bench.facts.service_s == pytest.approx(3.0, rel=0.01)


def test_where_requests_queue_those_of_other_processes_have_their_part_of_the_time() -> None:
    bench = Bench()
    bench.replica.in_flight = bench.replica.in_flight_elsewhere = 6
    claims = [bench.claim() for _ in range(3)]
    for turn in range(1, 30):
        claims.append(bench.claim())
        bench.release(claims.pop(0), 9.0 * turn)
    assert bench.facts.service_s == pytest.approx(3.0, rel=0.01), "a third of nine seconds"


def test_where_they_do_not_queue_it_has_taken_what_it_took() -> None:
    bench = Bench()
    bench.replica.in_flight = bench.replica.in_flight_elsewhere = 1
    bench.release(bench.claim(), 2.0)
    assert bench.facts.service_s == pytest.approx(1.2)


def test_an_answer_that_never_came_says_nothing() -> None:
    bench = Bench()
    claim = bench.claim()
    bench.at_s = 7.0
    claim.release(answered=False)
    assert bench.facts.service_s == 1.0


def test_how_long_an_answer_is_expected_to_take_counts_what_is_there() -> None:
    bench = Bench()
    claims = [bench.claim() for _ in range(3)]
    assert [claim.expected_s for claim in claims] == [1.0, 2.0, 3.0]
    bench.server.parallel = 3
    assert bench.claim().expected_s == pytest.approx(2.0)


async def test_an_instance_that_is_idle_again_wakes_who_waits_for_one() -> None:
    bench = Bench()
    first, second = bench.claim(), bench.claim()
    woken = bench.idle_waiters.next("late", "m", avoid=())
    bench.release(first, 1.0)
    assert not woken.done()  # the model has one instance, and another request is there
    bench.release(second, 2.0)
    assert woken.done()


def test_the_end_of_a_request_looks_at_no_other_model_of_its_server() -> None:
    class Unwalked(dict[str, Replica]):
        def values(self) -> NoReturn:
            raise AssertionError("with a thousand models on a server that would take longer than all else")

    bench = Bench()
    bench.server.replicas, bench.facts.service_s = Unwalked(bench.server.replicas), 0.1
    claims = [bench.claim() for _ in range(3)]
    for claim in claims:
        claim.release(answered=False)
    assert bench.server.work_s == 0.0, "exactly: the differences of the sums count as nothing"
