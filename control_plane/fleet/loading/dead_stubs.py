"""Repairs replicas whose Python stub has died, by reloading them: Triton (24.10) goes on listing them as READY.

A replica with a dead stub answers every request with an error after a second, and never recovers by itself. For an embedded
Triton the death itself is detected (`triton/embedded/watchdogs/stub_watch`); for an attached one it is inferred from its errors,
for each of which `fleet/routing/model_router` calls this.
"""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.fleet.domain.fleet import Replica, Server
from control_plane.fleet.loading.replica_repairs import ReplicaRepairs
from control_plane.fleet.view.state import FleetState
from control_plane.models.domain.revival_backoff import RevivalBackoff
from control_plane.triton.copy_silence import HUNG

_ANSWERS = 3
"""Answers that show a dead stub. One may be an error message of the model's own; more in a row cannot be
asked for, since of several instances those that live on answer in between."""
_WITHIN_S = 60.0
"""Time within which these answers have to come."""

_DIED = "its Python process has died"


@dataclass(slots=True)
class _Record:
    """Telling answers of one replica."""

    replica: Replica
    since_s: float
    answers: int = 0


class DeadStubDetector:
    """Dead-stub detector of one process: hears of deaths, or counts the telling answers of each replica, and
    has it loaded anew, with exponential back-off."""

    def __init__(self, state: FleetState, repairs: ReplicaRepairs) -> None:
        self._state = state
        self._repairs = repairs
        self._records: dict[tuple[str, str], _Record] = {}
        self._backoff = RevivalBackoff()

    def count_dead_answer(self, server: Server, replica: Replica, *, is_probe: bool = False) -> None:
        """Count an answer of this replica which says that its stub has died; to a probe, after another such answer, it
        is enough."""
        self._count(server, replica, _ANSWERS if is_probe else 1)

    def trust_report(self, server: Server, replica: Replica) -> None:
        """Take over the verdict of another process, which does not load models and has counted enough of
        these answers."""
        self._count(server, replica, _ANSWERS)

    def note_death(self, server: Server, model: str, how: str) -> None:
        """Repair all replicas on the server that need this model, whose stub is known to have died: the
        model's own, or those of ensembles. Where the back-off is not over, no requests go there meanwhile."""
        for replica in list(server.replicas.values()):
            if self._needs(replica, model):
                reason = f"the Python process of '{model}' {how}"
                self._repair(server, replica, reason=reason, dead=model, has_hung=how == HUNG)
            elif replica.model == model:  # a step, which is loaded anew with its ensembles
                self._state.note_dead(server, replica, has_hung=how == HUNG)

    def explain_death(self, server: Server, model: str) -> None:
        """Note that a stub of this model died on the server under a request that is refused now: that death does not count
        in the back-off, and who waits for it is loaded anew at once."""
        now_s = self._state.now_s()
        for replica in list(server.replicas.values()):
            if self._needs(replica, model) and self._backoff.explain((server.name, replica.model), now_s):
                self._repairs.hasten(replica, server)

    def _needs(self, replica: Replica, model: str) -> bool:
        return not replica.is_step and (replica.model == model or model in self._state.specs.steps_of(replica.model))

    def _count(self, server: Server, replica: Replica, answers: int) -> None:
        """Count such answers, and repair the replica when there are enough and the back-off is over."""
        now_s, key = self._state.now_s(), (server.name, replica.model)
        record = self._records.setdefault(key, _Record(replica, now_s))
        # Another replica of the model on the server starts with a clean count, but not with a clean back-off.
        if record.replica is not replica or now_s - record.since_s > _WITHIN_S:
            record.replica, record.since_s, record.answers = replica, now_s, 0
        record.answers += answers
        if record.answers >= _ANSWERS and not self._backoff.delay_s(key, now_s):
            record.answers = 0
            self._repair(server, replica, reason=_DIED, dead=replica.model)

    def _repair(self, server: Server, replica: Replica, *, reason: str, dead: str, has_hung: bool = False) -> None:
        now_s, key = self._state.now_s(), (server.name, replica.model)
        delay_s = self._backoff.delay_s(key, now_s)
        if self._repairs.repair(replica, server, reason=reason, dead=dead, delay_s=delay_s, has_hung=has_hung):
            self._backoff.begin(key, now_s + delay_s)
