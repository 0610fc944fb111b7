"""Which requests are taken back from a replica that answers nobody."""

from __future__ import annotations

from math import inf

import pytest

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet, ModelFacts, Replica, Server
from control_plane.fleet.domain.health.overdue import may_hang, overdue
from control_plane.models.domain.description import ModelSpec


class Scene:
    """Two replicas. The one at `s0` has had two requests since 10.0, and last answered at 9.9; the other one answers
    all the time. It is 12.0."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.fleet.models["m"] = ModelFacts(ModelSpec("m", 1), 1, load_s=1.0, service_s=0.01)
        for name in ("s0", "s1"):
            self.fleet.add_server(Server(name, 100))
            self.fleet.put_replica(self.fleet.servers[name], Replica("m", ModelState.READY, 1, 0.0, longest_s=0.02))
        self.here, self.other = (self.fleet.servers[name].replicas["m"] for name in ("s0", "s1"))
        self.here.waiting = {1: 10.0, 2: 10.1}
        self.here.answered_s, self.here.in_flight = 9.9, 2
        self.other.answered_s, self.other.in_flight = 11.99, 1

    def is_overdue(self, sent_s: float, *, now_s: float = 12.0, avoid: tuple[str, ...] = ()) -> bool:
        return overdue(self.fleet, self.fleet.servers["s0"], self.here, sent_s=sent_s, now_s=now_s, avoid=avoid)


def test_what_waits_behind_another_is_and_what_is_worked_on_is_not() -> None:
    assert Scene().is_overdue(10.1)
    assert not Scene().is_overdue(10.0), "it may be a long one"


def test_the_oldest_is_where_one_before_it_was_given_up() -> None:
    scene = Scene()
    scene.here.abandoned_s = 9.8
    assert scene.is_overdue(10.0)


def test_the_oldest_is_where_another_process_has_an_older_one() -> None:
    scene = Scene()
    scene.here.worked_on_elsewhere_s = 10.05
    assert not scene.is_overdue(10.0), "it is the oldest of all"
    scene.here.worked_on_elsewhere_s = 9.8
    assert scene.is_overdue(10.0)


def test_one_that_is_sent_to_a_replica_in_doubt_is_soon() -> None:
    scene = Scene()
    scene.here.abandoned_s, scene.here.waiting = 9.8, {3: 11.6}
    assert scene.is_overdue(11.6, now_s=11.95, avoid=("s0",))
    assert not scene.is_overdue(11.6, now_s=11.85, avoid=("s0",))
    assert not scene.is_overdue(11.6, now_s=11.95), "it is in no doubt"
    scene.here.longest_s = 0.2
    assert not scene.is_overdue(11.6, now_s=11.95, avoid=("s0",)), "answers have taken as long"


@pytest.mark.parametrize("now_s", [10.2, 11.5])
def test_not_before_it_has_waited_for_long(now_s: float) -> None:
    assert not Scene().is_overdue(10.1, now_s=now_s)


def test_not_where_answers_have_lately_taken_as_long() -> None:
    scene = Scene()
    scene.here.longest_s = 1.0
    assert not scene.is_overdue(10.1)
    assert scene.is_overdue(10.1, now_s=13.2)


def test_not_where_the_replica_answers() -> None:
    """A long queue is no wedge."""
    scene = Scene()
    scene.here.answered_s = 11.0
    assert not scene.is_overdue(10.1)


def test_not_where_no_other_answers_or_rests() -> None:
    scene = Scene()
    scene.other.answered_s = 10.0
    assert not scene.is_overdue(10.1)
    scene.other.in_flight = 0
    assert scene.is_overdue(10.1)
    assert not scene.is_overdue(10.1, avoid=("s1",))


@pytest.mark.parametrize("harm", ["silent", "ejected", "loading", "down"])
def test_not_where_the_other_would_not_do(harm: str) -> None:
    scene = Scene()
    server = scene.fleet.servers["s1"]
    match harm:
        case "silent":
            server.silent_from_s = 11.0
        case "ejected":
            server.is_ejected, server.probe_from_s = True, inf
        case "loading":
            scene.other.state = ModelState.LOADING
        case _:
            server.is_up = False
    assert not scene.is_overdue(10.1)


def test_what_was_there_at_the_last_answer_or_came_first_after_it_may_be_what_a_replica_hangs_in() -> None:
    scene = Scene()
    assert may_hang(scene.here, sent_s=10.0)
    assert may_hang(scene.here, sent_s=10.1), "it may have been taken with the first"
    assert not may_hang(scene.here, sent_s=11.0)
    scene.here.answered_s = 10.9
    assert may_hang(scene.here, sent_s=11.0)


@pytest.mark.parametrize("whose", ["abandoned_s", "worked_on_elsewhere_s"])
def test_nothing_hangs_in_what_came_after_one_that_was_given_up_or_is_another_processs(whose: str) -> None:
    scene = Scene()
    scene.here.answered_s = 8.0
    setattr(scene.here, whose, 8.1)
    assert not may_hang(scene.here, sent_s=10.0)
