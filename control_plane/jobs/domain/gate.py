"""Concurrency limit of bulk work beside interactive traffic, by queue delay.

A job's queue delay is what it took beyond the shortest time per row that was seen of its model lately. The further it is
below what is allowed, the sooner more jobs run, by one for each round of them at most; above it fewer do, and far above it
their number is halved, at most once a round. Interactive callers do not yield, so bulk work does (as TCP LEDBAT, RFC 6817,
from which the linear controller is). Below one the limit is a pause between jobs. It is for callers that are not seen
here: beside those that are, `admission/background` says when bulk work begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_TARGET_S = 0.06
"""Queue delay that is always allowed: less does not fill batches, and is lost in the noise of scheduling. A caller who comes
while nobody is reckoned with waits for so long once."""
_TARGET_RATIO = 1.0
"""Queue delay that is allowed, as a part of the time that the job itself takes."""
_DECREASE = 0.5
_FAR = 1.5
"""Queue delay from which on the limit is halved, times what is allowed: then callers have come, and it is not the noise of jobs
among themselves, at which halving would leave a quarter of an idle server unused."""
_SMALLEST = 1 / 16
_LONGEST_PAUSE_S = 2.0
_WINDOW_S = 30.0
"""Time for which a shortest time is believed; after two of them without a job nothing is known of a model."""


@dataclass(slots=True)
class _Shortest:
    """Windowed minimum of a model's seconds per row."""

    now: float
    before: float
    since_s: float

    def seen(self, value: float, now_s: float) -> float:
        if now_s - self.since_s > _WINDOW_S:
            self.before = self.now if now_s - self.since_s <= 2 * _WINDOW_S else value
            self.now, self.since_s = value, now_s
        self.now = min(self.now, value)
        return min(self.now, self.before)


@dataclass(slots=True)
class BulkGate:
    """Adaptive limit on the jobs that run at a time in one process."""

    most: int
    limit: float = 1.0
    least: float = _SMALLEST
    """Least limit: below one only where others than this process send to the servers."""
    pause_s: float = 0.0
    """Pause before the next job is claimed; above 0 only where even one job at a time is too many."""
    _shortest: dict[str, _Shortest] = field(default_factory=dict)
    _held_until_s: float = float("-inf")

    @property
    def slots(self) -> int:
        """Jobs that may run now, at least one."""
        return max(1, min(self.most, int(self.limit)))

    def ended(self, model: str, *, seconds: float, rows: int, now_s: float) -> None:
        """Learn from a job that was computed."""
        share = seconds / max(rows, 1)
        known = self._shortest.setdefault(model, _Shortest(share, share, now_s))
        base_s = known.seen(share, now_s) * max(rows, 1)
        delay = (seconds - base_s) / max(_TARGET_S, _TARGET_RATIO * base_s)
        if delay > _FAR or (delay > 1 and self.limit <= 1):
            self._decrease(seconds, now_s)
        else:
            step = (1 - delay) * min(self.limit, 1 / self.limit)
            self.limit = min(float(self.most), max(self.limit + step, min(self.limit, 1.0)))
        self._set_pause(seconds)

    def refused(self, now_s: float) -> None:
        """Learn from a job for which there was no room."""
        self._decrease(1.0, now_s)
        self._set_pause(1.0)

    def _decrease(self, round_s: float, now_s: float) -> None:
        if now_s >= self._held_until_s:
            self.limit = max(self.least, min(self.limit, float(self.most)) * _DECREASE)
            self._held_until_s = now_s + round_s

    def _set_pause(self, round_s: float) -> None:
        self.pause_s = min(_LONGEST_PAUSE_S, round_s * (1 / self.limit - 1)) if self.limit < 1 else 0.0
