"""Outlier detection and ejection: servers that answer too slowly or with errors get no requests for a while.

A server's latency is measured in multiples of the expected latency of the models it served, so that servers with different
models can be compared. Its average is compared with the median of its pool: if all servers are slow, none is an outlier. An
ejected server returns after a pause if some probe requests succeed; the pause doubles with each ejection. The precedent is
Envoy's outlier detection. `fleet/routing/model_router` reports to it and asks it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from statistics import median


@dataclass(frozen=True, slots=True)
class OutlierLimits:
    """Thresholds of ejection, and how an ejected server comes back."""

    max_errors: int = 5
    """Requests in a row that the server did not answer. An answer is no such error, even if it reports
    one."""

    max_slowness: float = 3.0
    """Factor over the median of the pool. Pauses of a garbage collector stay below it; a server that swaps or
    throttles does not."""

    min_answers: int = 30
    """Answers before a server's latency counts; from then on each weighs a thirtieth of the average."""

    max_ejected_part: float = 0.34
    """Largest part of a pool that may be ejected: one server of three, none of two. With more ejected the
    others would be overloaded and be ejected next."""

    first_pause_s: float = 5.0
    """Time before the first probe."""

    max_pause_s: float = 300.0
    """Upper bound of the pause, which doubles with each further ejection."""

    min_good_probes: int = 3
    """Probes in a row that have to do well before the server comes back."""

    probe_interval_s: float = 1.0
    """Time between two probes: no more than one request in this time is put at risk."""

    pause_reset_after_s: float = 120.0
    """Time without an ejection after which pauses start again at `first_pause_s`."""

    readmit_unprobed_after_s: float = 10.0
    """An ejected server comes back without probes when one has been due for this long, or for the length of
    its last pause if that is longer: no request came that could probe it, and perhaps none ever will for the
    models that it has."""


@dataclass(slots=True)
class _Record:
    """Record of one server's answers, errors and probes."""

    slowness: float = 1.0
    """Average of how long answers take, as a multiple of what is expected of their models."""
    answers: int = 0
    errors: int = 0
    """Unanswered requests in a row."""
    good_probes: int = 0
    """Successful probes in a row since the ejection."""
    probe_is_in_flight: bool = False
    """A probe request is at the server."""
    pause_s: float = 0.0
    """Length of the last pause."""
    probe_from_s: float = inf
    """When the next probe may be sent; finite only while the server is ejected."""
    back_s: float = -inf
    """When the server last came back."""
    why: str = ""
    """Why the server was last ejected."""


class Outliers:
    """Outlier detector for all servers of a fleet, as one process's own requests show them."""

    def __init__(self, limits: OutlierLimits | None = None) -> None:
        self._limits = limits or OutlierLimits()
        self._records: dict[str, _Record] = {}

    def note_answer(self, server: str, took_s: float, *, expected_s: float, now_s: float) -> None:
        """Count a request that was answered and that no other request slowed down; `expected_s` is its
        model's mean over all servers."""
        record = self._record(server)
        slowness = took_s / expected_s if expected_s > 0 else 1.0
        if record.probe_from_s < inf:
            self._tried(record, now_s, did_well=slowness < self._limits.max_slowness)
            return
        record.errors = 0
        record.answers += 1
        record.slowness += (slowness - record.slowness) / min(record.answers, self._limits.min_answers)

    def note_untimed_answer(self, server: str, now_s: float) -> None:
        """Count a request that was answered in a time that says nothing: a stream, one that others slowed
        down, or an error of the model's own."""
        record = self._record(server)
        if record.probe_from_s < inf:
            # A server whose requests are all of this kind could otherwise never pass a probe.
            self._tried(record, now_s, did_well=True)
        else:
            record.errors = 0

    def note_failure(self, server: str, now_s: float) -> None:
        """Count a request that the server did not answer."""
        record = self._record(server)
        if record.probe_from_s < inf:
            self._tried(record, now_s, did_well=False)
        else:
            record.errors += 1

    def judge(self, pool: Collection[str], now_s: float) -> dict[str, float]:
        """Eject and take back servers of a pool, given those that are up. Returns the ejected ones, each with
        the time of its next probe."""
        for name in pool:
            self._readmit_if_overdue(self._record(name), now_s)
        out = [name for name in pool if self._record(name).probe_from_s < inf]
        suspects = self._suspects([name for name in pool if name not in out], pool)
        # Rounded down, so that a pool of two loses nobody.
        room = int(self._limits.max_ejected_part * len(pool)) - len(out)
        for name in suspects[: max(0, room)]:
            self._eject(self._record(name), now_s)
            out.append(name)
        # Servers that were ejected before they joined this pool, or a pool that has shrunk, can break the
        # limit: those that have been ejected longest come back without a probe.
        while len(out) > int(self._limits.max_ejected_part * len(pool)):
            first = min(out, key=lambda name: self._record(name).probe_from_s)
            self._readmit(self._record(first), now_s)
            out.remove(first)
        return {name: self._record(name).probe_from_s for name in out}

    def note_probe(self, server: str, now_s: float) -> float:
        """Note that a probe request has been sent to the server. Returns when the next one may be sent."""
        record = self._record(server)
        if record.probe_from_s < inf:
            record.probe_from_s, record.probe_is_in_flight = now_s + self._limits.probe_interval_s, True
        return record.probe_from_s

    def retain_only(self, servers: Collection[str]) -> None:
        """Forget all servers but these. One that left or was down starts with a clean record when it comes
        back."""
        self._records = {name: record for name, record in self._records.items() if name in servers}

    def why(self, server: str) -> str:
        """Why the server was last ejected, as a sentence without its full stop."""
        return self._record(server).why

    def _record(self, server: str) -> _Record:
        return self._records.setdefault(server, _Record())

    def _suspects(self, names: Collection[str], pool: Collection[str]) -> list[str]:
        """The servers to eject, the worst first: those that do not answer, then those that are slow."""
        limits, records = self._limits, self._records
        known = [records[name].slowness for name in pool if records[name].answers >= limits.min_answers]
        # A median needs two servers: one alone would be compared with itself.
        limit = limits.max_slowness * median(known) if len(known) > 1 else inf
        failing = [name for name in names if records[name].errors >= limits.max_errors]
        slow = [name for name in names if records[name].answers >= limits.min_answers and records[name].slowness > limit]
        by_slowness = sorted(set(slow) - set(failing), key=lambda name: (-records[name].slowness, name))
        return sorted(failing, key=lambda name: (-records[name].errors, name)) + by_slowness

    def _eject(self, record: _Record, now_s: float) -> None:
        """Eject a server, for twice as long as the last time unless that was long ago."""
        limits = self._limits
        record.why = (
            f"it has not answered {record.errors} requests in a row"
            if record.errors >= limits.max_errors
            else f"it takes {record.slowness:.1f} times as long as is expected of its models"
        )
        is_new = record.pause_s == 0.0 or now_s - record.back_s >= limits.pause_reset_after_s
        self._pause(record, limits.first_pause_s if is_new else 2 * record.pause_s, now_s)

    def _pause(self, record: _Record, pause_s: float, now_s: float) -> None:
        record.pause_s = min(pause_s, self._limits.max_pause_s)
        record.probe_from_s, record.good_probes = now_s + record.pause_s, 0

    def _tried(self, record: _Record, now_s: float, *, did_well: bool) -> None:
        """Take the result of a probe: a good one counts towards coming back, a bad one doubles the pause."""
        # This answers a request from before the ejection, which was no probe.
        if not record.probe_is_in_flight:
            return
        record.probe_is_in_flight = False
        if not did_well:
            self._pause(record, 2 * record.pause_s, now_s)
            return
        record.good_probes += 1
        if record.good_probes >= self._limits.min_good_probes:
            self._readmit(record, now_s)

    def _readmit_if_overdue(self, record: _Record, now_s: float) -> None:
        if now_s > record.probe_from_s + max(record.pause_s, self._limits.readmit_unprobed_after_s):
            self._readmit(record, now_s)

    def _readmit(self, record: _Record, now_s: float) -> None:
        record.probe_from_s, record.back_s, record.probe_is_in_flight = inf, now_s, False
        # A clean record: by the old average it would be ejected again at once.
        record.errors, record.answers, record.slowness = 0, 0, 1.0
