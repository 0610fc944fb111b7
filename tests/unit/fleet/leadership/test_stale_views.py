from __future__ import annotations

from control_plane.fleet.domain.leadership.report import Wanted
from control_plane.fleet.leadership.stale_views import StaleViewDetector


class Asked:
    """A process that asks four times a second, and what the detector says."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.unseen = StaleViewDetector(lambda: self.now_s)

    def for_s(self, seconds: float, *, sees: int, ready: int, pool: str | None = None) -> int:
        """Ask for so long; return how often one more replica was needed."""
        found = 0
        for _ in range(round(seconds / 0.25)):
            self.now_s += 0.25
            found += self.unseen.needs_one_more(Wanted("m", sees, pool), ready)
        return found


def test_who_sees_what_there_is_lacks_nothing() -> None:
    assert Asked().for_s(60.0, sees=1, ready=1) == 0


def test_who_sees_a_replica_a_moment_later_lacks_nothing() -> None:
    asked = Asked()
    for _ in range(10):
        assert asked.for_s(1.0, sees=0, ready=1) == 0
        assert asked.for_s(0.25, sees=1, ready=1) == 0


def test_who_goes_on_asking_gets_one_more_and_no_further_one_before_that_can_have_come() -> None:
    asked = Asked()
    assert asked.for_s(2.0, sees=0, ready=1) == 0
    assert asked.for_s(0.5, sees=0, ready=1) == 1
    assert asked.for_s(1.75, sees=0, ready=1) == 0
    assert asked.for_s(1.0, sees=0, ready=2) == 1


def test_wishes_with_a_pause_between_are_not_one() -> None:
    asked = Asked()
    for _ in range(10):
        assert asked.for_s(1.5, sees=0, ready=1) == 0
        asked.now_s += 1.5


def test_pools_are_asked_for_each_by_itself() -> None:
    asked = Asked()
    assert asked.for_s(1.5, sees=0, ready=1) == 0
    assert asked.for_s(0.5, sees=0, ready=1, pool="long") == 0
    assert asked.for_s(0.25, sees=1, ready=1, pool="short") == 0
    assert asked.for_s(0.25, sees=0, ready=1) == 1
