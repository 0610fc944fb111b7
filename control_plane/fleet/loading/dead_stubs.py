"""Finds copies whose Python process has died, which Triton (24.10) goes on listing as READY, and has them loaded anew.

Such a one answers every request with an error after a second, and never recovers by itself. Told by `fleet/routing/residency` of
each answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.core.backoff import RestartLimits, count_failures, restart_delay_s
from control_plane.fleet.domain.fleet import NEVER_S, Copy, Server
from control_plane.fleet.loading.copy_loads import CopyLoads
from control_plane.fleet.view.state import FleetState

_ANSWERS = 3
"""One may be a model's own words. Of several instances those that live on answer in between, so it is not so many in a row."""
_WITHIN_S = 60.0

_BACK_OFF = RestartLimits(first_delay_s=5.0, max_delay_s=300.0, settled_after_s=600.0)
"""From one revival of a model on a server to the next. Each leaves a little behind in Triton, and what kills a process at once
would have it loaded for ever."""


@dataclass(slots=True)
class _Record:
    copy: Copy
    since_s: float
    answers: int = 0
    revived_s: float = NEVER_S
    failures: int = 0


class Revivals:
    """Reloads copies whose stub has died, as one process notices them."""

    def __init__(self, state: FleetState, loads: CopyLoads) -> None:
        self._state = state
        self._loads = loads
        self._records: dict[tuple[str, str], _Record] = {}

    def died(self, server: Server, copy: Copy) -> None:
        """A request has been answered so."""
        self._count(server, copy, 1)

    def told(self, server: Server, copy: Copy) -> None:
        """Another process, which does not load models, has been answered so often enough."""
        self._count(server, copy, _ANSWERS)

    def _count(self, server: Server, copy: Copy, answers: int) -> None:
        now_s = self._state.now_s()
        record = self._records.setdefault((server.name, copy.model), _Record(copy, now_s))
        if record.copy is not copy or now_s - record.since_s > _WITHIN_S:
            record.copy, record.since_s, record.answers = copy, now_s, 0
        record.answers += answers
        if record.answers >= _ANSWERS and now_s - record.revived_s >= self._delay_s(record):
            record.failures = count_failures(record.failures, life_s=now_s - record.revived_s, limits=_BACK_OFF)
            record.revived_s, record.answers = now_s, 0
            self._loads.revive(copy, server, reason="its Python process has died")

    def _delay_s(self, record: _Record) -> float:
        return restart_delay_s(record.failures, limits=_BACK_OFF) if record.failures else 0.0
