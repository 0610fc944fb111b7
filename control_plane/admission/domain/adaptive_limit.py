"""Adaptive concurrency limit: how many requests of a model that several tenants use may be at Triton at a
time.

Requests that were sent to Triton are served in its own order, which fair queuing cannot change: each slot
that adds no throughput only adds to everybody's wait. So of two neighbouring limits, one twice the other, the
smaller wins unless the larger has 7 % more throughput. A model that serves one request after the other comes
down to a few slots, a model that batches keeps what fills its batches.

Two limits are compared in pairs of measuring windows, one window with each, until one is three pairs ahead:
an odd window decides no more than its pair. A gateway that shares the model with other gateways loses
throughput to them when it takes fewer slots, and therefore keeps its slots.

Pure; called by `admission/concurrency_limiter`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MIN_SLOTS = 2
"""Smallest limit: one request that is computed and one that follows it without a gap."""

_WORTH_IT = 1.07
"""Ratio of throughputs from which the larger limit wins a pair."""
_CLEARLY_WORTH_IT = 4 / 3
"""Ratio of throughputs from which a trial with fewer slots is ended by its first pair."""
_AHEAD = 3
"""Pairs by which a limit must be ahead to win the trial."""

# A trial takes a second or so. One with fewer slots holds back a model that batches until its first pair is
# over, so trials that change nothing become rarer.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 15.0, 60.0
# Without a measured request for so long, what was learned is dropped and the limit starts from the most
# again.
_FORGOTTEN_AFTER_S = 60.0

# A window lasts several whole batches, and long enough with a fast model that a pause of the garbage
# collector does not decide it.
_ROUNDS_IN_WINDOW, _MIN_WINDOW_S = 4, 0.1


@dataclass(frozen=True, slots=True)
class Trial:
    """Trial that compares the present limit with half or twice of it, in pairs of measuring windows."""

    kept: int
    other: int
    rate_of_kept: float | None = None
    """Throughput with the present limit in this pair; None while it is being measured."""
    ahead: int = 0
    """Pairs that the other limit won, minus those that it lost."""

    @property
    def slots(self) -> int:
        """Limit in force now: first the present one is measured, then the other."""
        return self.kept if self.rate_of_kept is None else self.other

    @property
    def is_decided(self) -> bool:
        return abs(self.ahead) >= _AHEAD

    def after(self, rate: float) -> Trial:
        """Return the trial after its next window, in which the throughput was `rate` (cost units per
        second).
        """
        if self.rate_of_kept is None:
            return replace(self, rate_of_kept=rate)
        return Trial(self.kept, self.other, ahead=self._ahead_after(self.rate_of_kept, rate))

    def _ahead_after(self, kept: float, other: float) -> int:
        if self.other > self.kept:
            return self.ahead + (1 if other > kept * _WORTH_IT else -1)
        # Far too few slots cost every tenant throughput as long as the trial lasts: one such pair ends it.
        if kept > other * _CLEARLY_WORTH_IT:
            return -_AHEAD
        return self.ahead + (-1 if kept > other * _WORTH_IT else 1)


@dataclass(frozen=True, slots=True)
class LimitState:
    """State of a model's limit: the present one, and the trial that goes on or the pause before the next."""

    kept: int
    most: int
    tries_fewer: bool = True
    """Whether the next trial is with fewer slots; if that is not possible, it is with more, and the other way
    round.
    """
    trial: Trial | None = None
    rests_until_s: float = float("-inf")
    pause_s: float = _FIRST_PAUSE_S

    @property
    def slots(self) -> int:
        """Limit in force now."""
        return self.kept if self.trial is None else self.trial.slots

    def after(self, rate: float, now_s: float) -> LimitState:
        """Return the state after a window that ends now; requests waited all through it, and the throughput
        was `rate`.
        """
        trial = self.trial
        if trial is None:
            if now_s < self.rests_until_s:
                return self
            trial = self._begun()
        if trial is None:
            return self
        trial = trial.after(rate)
        return self._concluded(trial, now_s) if trial.is_decided else replace(self, trial=trial)

    def interrupted(self, now_s: float) -> LimitState:
        """Return the state after nothing waits any more: without a queue throughput is the demand, and a
        trial tells nothing.
        """
        return self if self.trial is None else replace(self, trial=None, rests_until_s=now_s + _FIRST_PAUSE_S)

    def _begun(self) -> Trial | None:
        """Return a new trial, or None where neither half nor twice the limit is within bounds."""
        neighbours = [max(MIN_SLOTS, self.kept // 2), min(self.most, self.kept * 2)]
        first, second = neighbours if self.tries_fewer else reversed(neighbours)
        other = first if first != self.kept else second
        return Trial(self.kept, other) if MIN_SLOTS <= other <= self.most and other != self.kept else None

    def _concluded(self, trial: Trial, now_s: float) -> LimitState:
        """Return the state after a decided trial.

        A limit that was changed may be tried further at once; one that was confirmed rests, each time for
        longer.
        """
        if trial.ahead > 0:
            return LimitState(trial.other, self.most, tries_fewer=trial.other < trial.kept)
        pause_s = min(2 * self.pause_s, _LONGEST_PAUSE_S)
        return LimitState(self.kept, self.most, trial.other > trial.kept, rests_until_s=now_s + self.pause_s, pause_s=pause_s)


class AdaptiveLimit:
    """Adaptive concurrency limit of one model, with the window of requests that is being measured."""

    __slots__ = ("_done", "_ends_s", "_last_s", "_learned", "_since_s", "_units", "_wanted", "is_busy", "slots")

    slots: int
    is_busy: bool
    """Whether a window or a trial goes on, which `interrupt` would end."""
    _since_s: float | None
    """When the window began; None while requests from before the change of the limit still leave the
    model.
    """
    _done: int
    _wanted: int
    _units: float

    def __init__(self, most: int) -> None:
        """`most` is the largest limit, and the first."""
        self._last_s = float("-inf")
        self._begin(LimitState(most, most))

    def ended(self, cost: float, now_s: float) -> None:
        """Record the end of a request of `cost` units, while requests wait or more slots are taken than the
        limit.
        """
        if now_s - self._last_s > _FORGOTTEN_AFTER_S:
            self._begin(LimitState(self._learned.most, self._learned.most))
        self._last_s = now_s
        self.is_busy = True
        self._done += 1
        self._units += cost
        if self._done >= self._wanted and now_s > self._ends_s:
            self._end(now_s)

    def interrupt(self, now_s: float) -> None:
        """Record the end of a request while slots are free: the window and the trial no longer measure the
        model.
        """
        self._begin(self._learned.interrupted(now_s))

    def _end(self, now_s: float) -> None:
        """End a window, or the time before it in which requests from before the change of the limit leave the
        model uncounted.
        """
        if self._since_s is None:
            self._since_s, self._ends_s = now_s, now_s + _MIN_WINDOW_S
            self._done, self._units, self._wanted = 0, 0.0, _ROUNDS_IN_WINDOW * self._wanted
        else:
            self._begin(self._learned.after(self._units / (now_s - self._since_s), now_s))

    def _begin(self, learned: LimitState) -> None:
        """Enter a new state; the next window starts after as many requests have left as were at the model at
        most.
        """
        self._learned, self.slots = learned, learned.slots
        trial = learned.trial
        self.is_busy = trial is not None
        self._since_s, self._ends_s = None, float("-inf")
        self._done, self._units = 0, 0.0
        self._wanted = learned.kept if trial is None else max(trial.kept, trial.other)
