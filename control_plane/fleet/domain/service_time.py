"""Estimator of a model's service time: how long one request occupies a server, measured also while requests queue.

An answer's latency includes queueing, and with several instances or batches it says little of how soon the next one follows. The
departures of a busy replica show the service time: while a replica is busy, the time between departures is the time per request,
whatever the number of instances. A batch whose answers leave together counts as one interval with many departures.
`fleet/view/reservations` feeds it with each request.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

_SAME_BURST = 0.25
"""Answers that follow one another within this part of the mean interval belong to one batch. A batch that was
cut in two would count its first answer as slow and the others as free."""


class ServiceClock:
    """Clock of one server that shows how much service each of its busy models has got (processor sharing).

    It slows down as more models are busy: two that keep a server busy together take half of it each. Models
    that do not hinder one another are thought faster than they are, at most by their number; the sum of their
    work, by which servers are compared, stays right.
    """

    __slots__ = ("_read_at_s", "_served_s", "busy_models")

    def __init__(self) -> None:
        self.busy_models, self._read_at_s, self._served_s = 0, 0.0, 0.0

    def read_s(self, now_s: float) -> float:
        """Seconds of service that each busy model has got since some point in the past. To be called before
        `busy_models` changes."""
        passed_s = now_s - self._read_at_s
        self._served_s += passed_s / self.busy_models if self.busy_models > 1 else passed_s
        self._read_at_s = now_s
        return self._served_s


class Departures(NamedTuple):
    """Requests that left a busy replica one after the other or together."""

    service_s: float
    """Mean time that one took of the server."""
    requests: int


class DepartureMeter:
    """Meter of one replica's departures, in the time of its server's `ServiceClock`."""

    __slots__ = ("_answered", "_last_s", "_since_s", "in_flight")

    def __init__(self) -> None:
        self.in_flight = 0
        """Requests of this process at the replica."""
        # The present interval: where it began, its last departure, and how many there were. It begins at
        # infinity where its beginning is unknown.
        self._since_s, self._last_s, self._answered = inf, inf, 0

    def arrived(self, clock: ServiceClock, now_s: float) -> None:
        """Note that a request is sent to the replica now."""
        if not self.in_flight:
            self._since_s = self._last_s = clock.read_s(now_s)
            self._answered = 0
            clock.busy_models += 1
        self.in_flight += 1

    def departed(self, clock: ServiceClock, now_s: float, *, answered: bool) -> Departures | None:
        """Note that a request has left. Returns what the departures before it have shown, or all up to it if
        it was the last."""
        served_s = clock.read_s(now_s)
        self.in_flight -= 1
        if not self.in_flight:
            clock.busy_models -= 1
        if not answered:
            # How much of its time the server worked for this request is unknown: the next departure begins anew.
            return self._end_interval(begins_at_s=inf)
        if self._since_s == inf:
            self._since_s = self._last_s = served_s
            return None
        # A pause that is long beside the intervals before it shows that the answers of a batch are complete.
        pause_s, answered_before = served_s - self._last_s, self._answered
        is_next = self.in_flight and answered_before and pause_s * answered_before > _SAME_BURST * (self._last_s - self._since_s)
        shown = self._end_interval(begins_at_s=self._last_s) if is_next else None
        self._last_s = served_s
        self._answered += 1
        return shown if self.in_flight else self._end_interval(begins_at_s=inf)

    def _end_interval(self, *, begins_at_s: float) -> Departures | None:
        """End the present interval at its last departure, and begin the next."""
        shown = Departures((self._last_s - self._since_s) / self._answered, self._answered) if self._answered else None
        self._since_s, self._last_s, self._answered = begins_at_s, begins_at_s, 0
        return shown
