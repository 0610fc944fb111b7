"""How long callers wait for an answer who do not say so, learned from those that left. Pure; called by
`admission/concurrency_limiter`.

Many clients have a time-out of their own and never tell it. Under overload the queue grows until all who reach its
head are about to leave: a model that is asked for a fifth more than it can do then answers nobody at all, though it
computes all the time. So what is known to be longer than callers stay is their deadline.
"""

from __future__ import annotations

from collections import OrderedDict, deque

# Requests that the estimate is of: the last ones that had to wait.
_LAST = 128

# Callers who are taken to stay for ever, beside those that were seen: a few who leave show nothing.
_ASSUMED_TO_STAY = 2

# Part of the callers that must be there after some time, for a request that takes so long to be worth computing. Not half: as
# many who leave at once, as those do who ask twice and take the first answer, say nothing of those who stay.
_WORTHWHILE = 0.33

# An estimate that nobody's leaving has confirmed is doubled in this time: callers may have become more patient, which those
# who are refused cannot show.
_DOUBLED_S = 16.0

# An estimate that was doubled so often is of the past.
_FORGOTTEN_AFTER = 5

# Most kinds of callers that are remembered.
_MOST_KINDS = 256

_FOR_EVER_S = float("inf")


class CallerPatience:
    """Estimator of how long callers stay, for each kind of them: requests of one tenant with deadlines of one order of
    magnitude."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[tuple[str, int], _Kind] = OrderedDict()
        """Only those of which somebody has left, least recently left first."""

    def left(self, kind: tuple[str, int], after_s: float, now_s: float) -> None:
        """Note that a caller left `after_s` after it came, before its deadline and without an answer."""
        known = self._kinds.setdefault(kind, _Kind())
        self._kinds.move_to_end(kind)
        known.left(after_s, now_s)
        if len(self._kinds) > _MOST_KINDS:
            self._kinds.popitem(last=False)

    def stayed(self, kind: tuple[str, int], for_s: float) -> None:
        """Note that a caller stayed for at least so long."""
        if (known := self._kinds.get(kind)) is not None:
            known.seen.append((for_s, False))

    def stays_s(self, kind: tuple[str, int], now_s: float) -> float:
        """Estimate how long callers stay; infinity if nothing says that they leave."""
        known = self._kinds.get(kind)
        return _FOR_EVER_S if known is None else known.stays_s(now_s)


class _Kind:
    """Estimator of how long callers of one kind stay."""

    __slots__ = ("_confirmed_s", "_left_s", "_stays_s", "seen")

    def __init__(self) -> None:
        self.seen: deque[tuple[float, bool]] = deque(maxlen=_LAST)
        """How long the last callers were there, and whether they left then; others had their answer, and might have stayed."""
        self._stays_s = _FOR_EVER_S
        self._confirmed_s = 0.0
        self._left_s: float | None = None
        """When the last caller left, if that was since the last estimate."""

    def left(self, after_s: float, now_s: float) -> None:
        self.seen.append((after_s, True))
        self._left_s = now_s  # estimated anew when somebody asks: thousands may leave in one turn of the event loop

    def stays_s(self, now_s: float) -> float:
        if self._left_s is not None:
            if (stay_s := _longest_stay_s(self.seen)) < _FOR_EVER_S:
                self._stays_s, self._confirmed_s = stay_s, self._left_s
            self._left_s = None
        doubled = (now_s - self._confirmed_s) / _DOUBLED_S
        return _FOR_EVER_S if doubled > _FORGOTTEN_AFTER else self._stays_s * 2.0**doubled


def _longest_stay_s(seen: deque[tuple[float, bool]]) -> float:
    """Return after how long too few callers are left; infinity if that is never so.

    Of those that had their answer it is known only that they stayed until then: the estimate is Kaplan and Meier's (1958).
    """
    left = 1.0
    there = len(seen) + _ASSUMED_TO_STAY
    for after_s, has_left in sorted(seen):
        if has_left:
            left *= 1.0 - 1.0 / there
            if left < _WORTHWHILE:
                return after_s
        there -= 1
    return _FOR_EVER_S
