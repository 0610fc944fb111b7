"""Which servers get no requests for a while since they answer too slowly or with errors; kept by `fleet/view/state`'s owner.

A server's answers are held against what is expected of their models, so that servers with different models can be compared, and
its average against the median of its pool: when all are slow nobody is an outlier. One that is ejected comes back after a pause,
if some requests that are sent there to try do well; the pause grows with each time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from statistics import median


@dataclass(frozen=True, slots=True)
class OutlierLimits:
    """When to eject, and how to come back."""

    errors: int = 5
    """In a row: requests that the server did not answer; what it answers, be it with an error, is none."""

    slower_than_median: float = 3.0
    """Times. Pauses of a garbage collector pass below this, a server that swaps or throttles does not."""

    answers: int = 30
    """Before its latency says anything; each weighs a thirtieth of the average."""

    part: float = 0.34
    """Of a pool at most: one of three, none of two. With more gone the others would be overloaded, and be ejected next."""

    first_pause_s: float = 5.0
    """Before the first trial."""

    max_pause_s: float = 300.0
    """The pause doubles up to here each time it is ejected again."""

    trials: int = 3
    """In a row that have to do well."""

    trial_every_s: float = 1.0
    """One request in so long is at stake."""

    settled_after_s: float = 120.0
    """Without being ejected again: then the pauses begin anew."""

    on_trust_s: float = 10.0
    """After a trial is due, or after as long as the pause was if that is longer, it comes back without one: no request has come that
    could try it, and none may ever come here, or for what it still has."""


@dataclass(slots=True)
class _Record:
    slowness: float = 1.0
    """How long answers take, in times of what is expected of their models."""
    answers: int = 0
    errors: int = 0
    trials: int = 0
    """In a row that did well, since it was ejected."""
    is_on_trial: bool = False
    """A request is there to try it."""
    pause_s: float = 0.0
    """The last one's length."""
    try_from_s: float = inf
    """Finite while it is ejected."""
    back_s: float = -inf
    """When it was last taken back."""
    why: str = ""
    """It was last ejected."""


class Outliers:
    """What is known of each server's answers."""

    def __init__(self, limits: OutlierLimits | None = None) -> None:
        self._limits = limits or OutlierLimits()
        self._records: dict[str, _Record] = {}

    def answered(self, server: str, took_s: float, *, expected_s: float, now_s: float) -> None:
        """A request that was not hampered by others has been answered; `expected_s` is its model's mean, of all servers."""
        record = self._record(server)
        slowness = took_s / expected_s if expected_s > 0 else 1.0
        if record.try_from_s < inf:
            self._tried(record, now_s, did_well=slowness < self._limits.slower_than_median)
            return
        record.errors = 0
        record.answers += 1
        record.slowness += (slowness - record.slowness) / min(record.answers, self._limits.answers)

    def served(self, server: str, now_s: float) -> None:
        """A request has been answered, how soon says nothing: it was a stream, others hampered it, or its answer was an error of its
        model's."""
        record = self._record(server)
        if record.try_from_s < inf:
            self._tried(record, now_s, did_well=True)  # all that its requests may be able to show
        else:
            record.errors = 0

    def failed(self, server: str, now_s: float) -> None:
        record = self._record(server)
        if record.try_from_s < inf:
            self._tried(record, now_s, did_well=False)
        else:
            record.errors += 1

    def judge(self, pool: Collection[str], now_s: float) -> dict[str, float]:
        """Of the servers of a pool that are up: those that are ejected now, each with when the next request may try it."""
        for name in pool:
            self._trust_if_overdue(self._record(name), now_s)
        out = [name for name in pool if self._record(name).try_from_s < inf]
        suspects = self._suspects([name for name in pool if name not in out], pool)
        room = int(self._limits.part * len(pool)) - len(out)
        for name in suspects[: max(0, room)]:
            self._eject(self._record(name), now_s)
            out.append(name)
        # One that joined the pool ejected, or a pool that has shrunk: who has waited longest comes back on trust.
        while len(out) > int(self._limits.part * len(pool)):
            first = min(out, key=lambda name: self._record(name).try_from_s)
            self._take_back(self._record(first), now_s)
            out.remove(first)
        return {name: self._record(name).try_from_s for name in out}

    def tried(self, server: str, now_s: float) -> float:
        """A request has been sent there to try it. Returns when the next one may."""
        record = self._record(server)
        if record.try_from_s < inf:
            record.try_from_s, record.is_on_trial = now_s + self._limits.trial_every_s, True
        return record.try_from_s

    def keep(self, servers: Collection[str]) -> None:
        """Forget all but these: who has left, or has been down, comes as a new one."""
        self._records = {name: record for name, record in self._records.items() if name in servers}

    def why(self, server: str) -> str:
        """It was last ejected, as a sentence without its full stop."""
        return self._record(server).why

    def _record(self, server: str) -> _Record:
        return self._records.setdefault(server, _Record())

    def _suspects(self, names: Collection[str], pool: Collection[str]) -> list[str]:
        """The worst first."""
        limits, records = self._limits, self._records
        known = [records[name].slowness for name in pool if records[name].answers >= limits.answers]
        limit = limits.slower_than_median * median(known) if len(known) > 1 else inf
        failing = [name for name in names if records[name].errors >= limits.errors]
        slow = [name for name in names if records[name].answers >= limits.answers and records[name].slowness > limit]
        by_slowness = sorted(set(slow) - set(failing), key=lambda name: (-records[name].slowness, name))
        return sorted(failing, key=lambda name: (-records[name].errors, name)) + by_slowness

    def _eject(self, record: _Record, now_s: float) -> None:
        limits = self._limits
        record.why = (
            f"it has not answered {record.errors} requests in a row"
            if record.errors >= limits.errors
            else f"it takes {record.slowness:.1f} times as long as is expected of its models"
        )
        is_new = record.pause_s == 0.0 or now_s - record.back_s >= limits.settled_after_s
        self._pause(record, limits.first_pause_s if is_new else 2 * record.pause_s, now_s)

    def _pause(self, record: _Record, pause_s: float, now_s: float) -> None:
        record.pause_s = min(pause_s, self._limits.max_pause_s)
        record.try_from_s, record.trials = now_s + record.pause_s, 0

    def _tried(self, record: _Record, now_s: float, *, did_well: bool) -> None:
        if not record.is_on_trial:  # Of a request that was sent before it was ejected.
            return
        record.is_on_trial = False
        if not did_well:
            self._pause(record, 2 * record.pause_s, now_s)
            return
        record.trials += 1
        if record.trials >= self._limits.trials:
            self._take_back(record, now_s)

    def _trust_if_overdue(self, record: _Record, now_s: float) -> None:
        if now_s > record.try_from_s + max(record.pause_s, self._limits.on_trust_s):
            self._take_back(record, now_s)

    def _take_back(self, record: _Record, now_s: float) -> None:
        record.try_from_s, record.back_s, record.is_on_trial = inf, now_s, False
        record.errors, record.answers, record.slowness = 0, 0, 1.0
