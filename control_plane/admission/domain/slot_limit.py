"""How many slots a model gets that several tenants use: no more than it makes use of; asked by `admission/concurrency_slots`.

What is at the model nobody overtakes, so each slot that adds no throughput only adds to what everybody waits for. Of two neighbouring
numbers, one twice the other, the smaller is kept unless the larger gets 7 % more done: a model that takes one request after the other
comes down to a few, one that batches keeps what fills its batches. They are compared in pairs of windows, one with each, and the one that
is ahead by three pairs is kept: however odd a window was, it decides no more than its pair.

A gateway that shares the model with others sees its own part of it shrink with fewer slots, and keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

LEAST = 2
"""One to be worked on and one to follow it."""

_WORTH_IT = 1.07
_CLEARLY_WORTH_IT = 4 / 3
_AHEAD = 3

# A trial takes a second or so. In one of fewer, a model that batches is held back until the first pair is over.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 15.0, 60.0
_FORGOTTEN_AFTER_S = 60.0

# Whole batches, several of them, and enough of a fast model not to measure a pause of the garbage collector.
_ROUNDS_IN_WINDOW, _LEAST_WINDOW_S = 4, 0.1


@dataclass(frozen=True, slots=True)
class Trial:
    """The number that is kept so far against a neighbour of it."""

    kept: int
    other: int
    rate_of_kept: float | None = None
    """In this pair; None while it is measured."""
    ahead: int = 0
    """Pairs that spoke for the other, less those against it."""

    @property
    def slots(self) -> int:
        """In force now."""
        return self.kept if self.rate_of_kept is None else self.other

    @property
    def is_decided(self) -> bool:
        return abs(self.ahead) >= _AHEAD

    def after(self, rate: float) -> Trial:
        """With the next window, in which the model worked at this rate."""
        if self.rate_of_kept is None:
            return replace(self, rate_of_kept=rate)
        return Trial(self.kept, self.other, ahead=self._ahead_after(self.rate_of_kept, rate))

    def _ahead_after(self, kept: float, other: float) -> int:
        if self.other > self.kept:
            return self.ahead + (1 if other > kept * _WORTH_IT else -1)
        if kept > other * _CLEARLY_WORTH_IT:
            return -_AHEAD
        return self.ahead + (-1 if kept > other * _WORTH_IT else 1)


@dataclass(frozen=True, slots=True)
class Learned:
    """What is known of a model."""

    kept: int
    most: int
    tries_fewer: bool = True
    """Next; where there are fewer or more."""
    trial: Trial | None = None
    rests_until_s: float = float("-inf")
    pause_s: float = _FIRST_PAUSE_S

    @property
    def slots(self) -> int:
        """In force now."""
        return self.kept if self.trial is None else self.trial.slots

    def after(self, rate: float, now_s: float) -> Learned:
        """With a window in which somebody waited all the time and the model worked at this rate; it ends now."""
        trial = self.trial
        if trial is None:
            if now_s < self.rests_until_s:
                return self
            trial = self._begun()
        if trial is None:
            return self
        trial = trial.after(rate)
        return self._concluded(trial, now_s) if trial.is_decided else replace(self, trial=trial)

    def interrupted(self, now_s: float) -> Learned:
        """Nobody waits: what is tried cannot be told."""
        return self if self.trial is None else replace(self, trial=None, rests_until_s=now_s + _FIRST_PAUSE_S)

    def _begun(self) -> Trial | None:
        neighbours = [max(LEAST, self.kept // 2), min(self.most, self.kept * 2)]
        first, second = neighbours if self.tries_fewer else reversed(neighbours)
        other = first if first != self.kept else second
        return Trial(self.kept, other) if LEAST <= other <= self.most and other != self.kept else None

    def _concluded(self, trial: Trial, now_s: float) -> Learned:
        """One step may be followed by the next at once."""
        if trial.ahead > 0:
            return Learned(trial.other, self.most, tries_fewer=trial.other < trial.kept)
        pause_s = min(2 * self.pause_s, _LONGEST_PAUSE_S)
        return Learned(self.kept, self.most, trial.other > trial.kept, rests_until_s=now_s + self.pause_s, pause_s=pause_s)


class SlotLimit:
    """The number of slots of one model, and the window that is measured."""

    __slots__ = ("_done", "_ends_s", "_last_s", "_learned", "_since_s", "_units", "_wanted", "is_busy", "slots")

    slots: int
    is_busy: bool
    """Something is measured or tried, which `interrupt` would end."""
    _since_s: float | None
    """When the window began; None while it does not count yet."""
    _done: int
    _wanted: int
    _units: float

    def __init__(self, most: int) -> None:
        self._last_s = float("-inf")
        self._begin(Learned(most, most))

    def ended(self, cost: float, now_s: float) -> None:
        """A request of so many units has left the model, whose slots are all wanted."""
        if now_s - self._last_s > _FORGOTTEN_AFTER_S:
            self._begin(Learned(self._learned.most, self._learned.most))
        self._last_s = now_s
        self.is_busy = True
        self._done += 1
        self._units += cost
        if self._done >= self._wanted and now_s > self._ends_s:
            self._end(now_s)

    def interrupt(self, now_s: float) -> None:
        """Something has left the model, and there are slots to spare."""
        self._begin(self._learned.interrupted(now_s))

    def _end(self, now_s: float) -> None:
        """What is at the model when the number changes leaves it first, uncounted; a window follows."""
        if self._since_s is None:
            self._since_s, self._ends_s = now_s, now_s + _LEAST_WINDOW_S
            self._done, self._units, self._wanted = 0, 0.0, _ROUNDS_IN_WINDOW * self._wanted
        else:
            self._begin(self._learned.after(self._units / (now_s - self._since_s), now_s))

    def _begin(self, learned: Learned) -> None:
        self._learned, self.slots = learned, learned.slots
        trial = learned.trial
        self.is_busy = trial is not None
        self._since_s, self._ends_s = None, float("-inf")
        self._done, self._units = 0, 0.0
        self._wanted = learned.kept if trial is None else max(trial.kept, trial.other)
