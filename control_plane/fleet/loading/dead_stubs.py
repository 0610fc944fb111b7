"""Repairs replicas whose Python stub has died, which Triton (24.10) goes on listing as READY: it has them
loaded anew.

A replica with a dead stub answers every request with an error after a second, and never recovers by itself.
`fleet/routing/model_router` calls this for each such answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.core.backoff import RestartLimits, count_failures, restart_delay_s
from control_plane.fleet.domain.fleet import NEVER_S, Replica, Server
from control_plane.fleet.loading.replica_loader import ReplicaLoader
from control_plane.fleet.view.state import FleetState

_ANSWERS = 3
"""Answers that show a dead stub. One may be an error message of the model's own; more in a row cannot be
asked for, since of several instances those that live on answer in between."""
_WITHIN_S = 60.0
"""Time within which these answers have to come."""

_BACK_OFF = RestartLimits(first_delay_s=5.0, max_delay_s=300.0, settled_after_s=600.0)
"""Back-off between two repairs of a model on a server. Each leaves a little behind in Triton, and a model
that crashes as soon as it is loaded would be loaded for ever."""


@dataclass(slots=True)
class _Record:
    """Failures and repairs of one model on one server."""

    copy: Replica
    since_s: float
    answers: int = 0
    revived_s: float = NEVER_S
    failures: int = 0


class DeadStubDetector:
    """Dead-stub detector of one process: counts the telling answers of each replica, and has it loaded anew,
    with exponential back-off."""

    def __init__(self, state: FleetState, loads: ReplicaLoader) -> None:
        self._state = state
        self._loads = loads
        self._records: dict[tuple[str, str], _Record] = {}

    def count_dead_answer(self, server: Server, copy: Replica) -> None:
        """Count an answer of this replica which says that its stub has died."""
        self._count(server, copy, 1)

    def trust_report(self, server: Server, copy: Replica) -> None:
        """Take over the verdict of another process, which does not load models and has counted enough of
        these answers."""
        self._count(server, copy, _ANSWERS)

    def _count(self, server: Server, copy: Replica, answers: int) -> None:
        """Count such answers, and repair the replica when there are enough and the back-off is over."""
        now_s = self._state.now_s()
        record = self._records.setdefault((server.name, copy.model), _Record(copy, now_s))
        # Another replica of the model on the server starts with a clean count, but not with a clean back-off.
        if record.copy is not copy or now_s - record.since_s > _WITHIN_S:
            record.copy, record.since_s, record.answers = copy, now_s, 0
        record.answers += answers
        if record.answers >= _ANSWERS and now_s - record.revived_s >= self._delay_s(record):
            record.failures = count_failures(record.failures, life_s=now_s - record.revived_s, limits=_BACK_OFF)
            record.revived_s, record.answers = now_s, 0
            self._loads.repair(copy, server, reason="its Python process has died")

    def _delay_s(self, record: _Record) -> float:
        return restart_delay_s(record.failures, limits=_BACK_OFF) if record.failures else 0.0
