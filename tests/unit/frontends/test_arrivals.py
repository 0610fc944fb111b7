"""When calls of a backlog came: also those that the kernel held while their connection's socket was not read."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from control_plane.frontends.grpc.arrivals import Arrivals


@dataclass
class Bench:
    """A connection that has read its first backlog at 10 and has handled it at 12."""

    unread_bytes: int = 0

    def __post_init__(self) -> None:
        self.arrivals = Arrivals(lambda: self.unread_bytes)
        self.arrivals.began_backlog(10.0)

    def came_s(self, unread_bytes: int) -> float | None:
        self.unread_bytes = unread_bytes
        return self.arrivals.came_s


def test_what_is_handled_at_once_comes_as_it_is_handled() -> None:
    assert Arrivals(lambda: 0).came_s is None


def test_a_first_backlog_came_when_it_was_read() -> None:
    bench = Bench()
    assert [bench.came_s(unread) for unread in (400, 0)] == [10.0, 10.0]


def test_what_is_read_after_it_came_meanwhile_the_first_of_it_first() -> None:
    bench = Bench()
    bench.arrivals.ended_backlog(12.0)
    bench.arrivals.read(400, 12.02)
    assert [bench.came_s(unread) for unread in (400, 100, 0)] == [10.0, pytest.approx(11.515), 12.02]
    bench.arrivals.began_backlog(12.03)
    assert bench.came_s(400) == 10.0


def test_a_large_message_of_which_a_little_is_read_came_no_earlier() -> None:
    bench = Bench()
    bench.arrivals.ended_backlog(12.0)
    bench.arrivals.read(10, 12.0)
    assert bench.came_s(100_000) == 10.0


def test_what_comes_to_a_socket_that_is_read_again_came_just_now() -> None:
    bench = Bench()
    bench.arrivals.ended_backlog(12.0)
    bench.arrivals.read(400, 13.0)
    assert bench.came_s(400) == 13.0


def test_backlog_after_backlog() -> None:
    bench = Bench()
    for number in range(1, 4):
        bench.arrivals.ended_backlog(10.0 + number)
        bench.arrivals.read(400, 10.0 + number)
        bench.arrivals.began_backlog(10.0 + number)
        assert bench.came_s(400) == 9.0 + number
