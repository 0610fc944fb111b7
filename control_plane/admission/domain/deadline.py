"""Deadline-aware load shedding: whether a request can be answered in time, from what the model's recent
requests took.

A request takes its own service time, as if it had the model to itself, and beyond that some time for each
unit of work that Triton had before it. A model that computes one request after the other adds a whole service
time for each, one that batches or has free instances next to none. Both are measured, so that no work is sent
that would be done too late, and none is refused for a queue that costs nothing.

A request that took far longer than expected may have held up all others: a stall. What those took says nothing
of the next, so for a while they are not counted, and no estimate is believed until a request has ended that was
sent since. A model that has become slow for good has none by then, and what is known of it holds again.

Pure; called by `admission/concurrency_limiter`.
"""

from __future__ import annotations

# Weight of the newest request: the last 20 or so make up most of the mean, a fraction of a second of a busy
# model.
_NEWEST = 0.1
# The same for requests that had the model to themselves. Greater, since a first request that had to warm the
# model up must be forgotten after a few.
_NEWEST_ALONE = 0.25

# A request cannot be faster than alone: one that was so many times as fast shows that what is known is of
# another kind, from before its cost was known or from behind a request that held up all others. One that took
# so many times as long as expected is of another kind, too, and a stall.
_OF_ANOTHER_KIND = 16

# Part of a stall's length for which estimates are doubted after it, and requests that it held up not counted. What
# it held up ends in a moment, one after the other; a model that is slow for good ends nothing else by then.
_DOUBTED = 1 / 4

# Work that waits in Triton of a model that has enough: at least so many seconds of it, or this part of what the most
# urgent requests may take, which wait behind it; and at least so many times what a request takes alone. A model that
# batches then has its next batch there while it computes one. Twice would be enough for certain, and is not sure to be
# seen: of one request after the other a third would be sent, behind which a short deadline is missed.
_ENOUGH_S, _ENOUGH_OF_URGENT, _LEAST_ENOUGH_S, _ENOUGH_TIMES_ALONE = 0.1, 0.25, 0.02, 1.5

_CAUTION = 4 / 3
"""Factor on the time for the work ahead. What is admitted beyond what Triton can do is computed in vain, and
with a full queue every request is at the edge; so an estimate that is a quarter too short must still do no
harm.
"""


class ServiceTime:
    """Estimator of a model's service time: linear in the work that Triton has before the request, by
    exponentially weighted means over the requests that have ended.
    """

    __slots__ = ("_alone_s", "_cost", "_held_s", "_is_proven", "_stall_ended_s", "_stall_until_s", "_work")

    def __init__(self) -> None:
        self._alone_s = 0.0
        """Seconds per unit of cost of a request that finds the model idle; 0 if there was none yet. One that
        others were ahead of counts too if it took less, since it cannot have been faster than alone: the first
        may have warmed the model up, or come before its cost was known, and a busy model is not idle again.
        """
        self._cost = 0.0
        self._work = 0.0
        """Units of cost that Triton had once a request was sent, its own included."""
        self._held_s = 0.0
        self._stall_ended_s = self._stall_until_s = float("-inf")
        self._is_proven = True
        """Whether a request has ended that was sent since the stall."""

    def record(self, cost: float, held_s: float, *, ahead: float, now_s: float) -> None:
        """Record a request of `cost` units that ended at `now_s`, `held_s` after it was sent behind work of
        `ahead` units.
        """
        pace = held_s / cost
        if now_s < self._stall_until_s:
            if now_s - held_s < self._stall_ended_s:
                return
            if not self._is_proven:
                self._is_proven, self._alone_s, self._work = True, 0.0, 0.0
        # The first test is the cheaper one, and settles it for nearly all: none is expected sooner than at an idle model.
        elif pace > _OF_ANOTHER_KIND * self._alone_s and held_s > _OF_ANOTHER_KIND * (self.answer_s(cost, ahead=ahead, caution=1.0) or 0.0):
            self._stall_ended_s, self._stall_until_s, self._is_proven = now_s, now_s + _DOUBTED * held_s, False
        # Nor faster by unit than all that was there together.
        if _OF_ANOTHER_KIND * pace < self._alone_s or 0.0 < _OF_ANOTHER_KIND * pace * self._work < self._held_s:
            self._alone_s, self._work = pace, 0.0
        if not ahead or pace < self._alone_s:
            self._alone_s += _NEWEST_ALONE * (pace - self._alone_s) if self._alone_s else pace
        if not self._work:
            self._cost, self._work, self._held_s = cost, ahead + cost, held_s
            return
        self._cost += _NEWEST * (cost - self._cost)
        self._work += _NEWEST * (ahead + cost - self._work)
        self._held_s += _NEWEST * (held_s - self._held_s)

    @property
    def is_known(self) -> bool:
        """Whether anything was measured."""
        return self._work > 0.0

    def is_in_doubt(self, now_s: float) -> bool:
        """Whether all that is known is from before the end of a stall that is just over."""
        return not self._is_proven and now_s < self._stall_until_s

    def answer_s(self, cost: float, *, ahead: float, caution: float = _CAUTION) -> float | None:
        """Estimate the seconds from the sending of a request until its answer, with work of `ahead` units at
        Triton before it; None if nothing was measured yet.
        """
        if not self._work:
            return None
        # `_each_s` and `_delay_s` without calls, since each request that ends asks.
        mean, each_s = self._cost, self._held_s / self._work
        if each_s < self._alone_s:
            each_s = self._alone_s
        behind_s = self._held_s - mean * each_s
        if not ahead or behind_s <= 0.0:
            return cost * each_s
        before = self._work - mean
        return cost * each_s + caution * ahead * behind_s / (before if before > mean else mean)

    def queued_answer_s(self, cost: float, *, queued: float, at_triton: float) -> float | None:
        """Estimate the same for a request that waits behind `queued` units until it can be sent."""
        if not self._work:
            return None
        drained_s = _CAUTION * self.drained_s(queued + cost, at_triton=at_triton)
        behind_s = cost * self._each_s() + _CAUTION * max(0.0, at_triton - cost) * self._delay_s()
        return max(drained_s + behind_s, self.answer_s(cost, ahead=at_triton) or 0.0)

    def drained_s(self, queued: float, *, at_triton: float) -> float:
        """Estimate the seconds until `queued` units have been sent, by Little's law: while they wait Triton
        has `at_triton` units at all times, so each request finds all of them ahead but its own.
        """
        at_triton = max(at_triton, self._cost)
        return queued * (self._cost * self._each_s() + (at_triton - self._cost) * self._delay_s()) / at_triton if at_triton else 0.0

    def _each_s(self) -> float:
        """Seconds per unit of cost of a request that has the model to itself: as measured, yet at least what each unit took
        where all that was there was done one after the other.
        """
        return max(self._alone_s, self._held_s / self._work) if self._work else self._alone_s

    def _delay_s(self) -> float:
        """Seconds that each unit of work ahead adds to a request's time: what it took beyond its own time, divided by what
        was ahead, or by its own cost where next to nothing was: noise makes no large number.
        """
        if not self._work:
            return 0.0
        return max(0.0, self._held_s - self._cost * self._each_s()) / max(self._work - self._cost, self._cost)

    def has_enough(self, at_triton: float, urgent_s: float) -> bool:
        """Whether Triton, with work of `at_triton` units, has more than keeps the model busy: all that it gets
        beyond that only waits there, where it cannot be overtaken nor taken back. The most urgent requests of late may
        take `urgent_s`.
        """
        enough_s = min(_ENOUGH_S, max(_LEAST_ENOUGH_S, _ENOUGH_OF_URGENT * urgent_s))
        return at_triton * self._delay_s() > max(enough_s, _ENOUGH_TIMES_ALONE * self._cost * self._each_s())

    def left_s(self, *, at_triton: float) -> float:
        """Estimate the seconds until Triton has done the work that it has."""
        return at_triton * self._delay_s()


def can_be_met(deadline_s: float, *, now_s: float, needed_s: float | None) -> bool:
    """Whether a request that needs `needed_s` can be answered in time; one whose time is unknown (None) is
    admitted.
    """
    return needed_s is None or now_s + needed_s <= deadline_s
