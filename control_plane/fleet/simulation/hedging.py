"""Hedging in a simulation: when production would send a request to a second server, and what becomes of the other send.

It uses production's policies: `fleet/domain/routing/hedging` decides when, where and for how long a server counts as busy,
`inference/domain/retry_budget` whether the budget allows it. Events replace the tasks and timers of `fleet/routing/hedging`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Protocol

from control_plane.fleet.domain.counts import Hedge
from control_plane.fleet.domain.fleet import Fleet, Server
from control_plane.fleet.domain.routing.hedging import HedgeDelays, idle_server, looks_again_after_s
from control_plane.fleet.simulation.clock import Clock
from control_plane.fleet.simulation.job import Job
from control_plane.fleet.simulation.outcome import SimulationResult
from control_plane.inference.domain.retry_budget import RetryBucket
from control_plane.objects.domain.route import HedgingPolicy
from control_plane.triton.ports import CANCEL_AFTER_S

_SIZE = 0
"""All requests of a model are of one size."""


class HedgedServer(Protocol):
    """The part of a simulated server that hedging needs."""

    def admit(self, job: Job) -> None: ...

    def cancel(self, job: Job) -> None: ...


class SimulatedHedging:
    """Hedged requests of one simulation, all of whose requests come through one gateway."""

    def __init__(
        self, policy: HedgingPolicy, clock: Clock, fleet: Fleet, outcome: SimulationResult, servers: Mapping[str, HedgedServer]
    ) -> None:
        self._policy = policy
        self._clock, self._fleet, self._outcome = clock, fleet, outcome
        self._servers = servers
        self._delays = HedgeDelays()
        self._budget, self._asked_units, self._asked_requests = RetryBucket(), 0.0, 0
        self._late: dict[str, dict[Job, None]] = {}
        """Model -> its late jobs that wait for an idle server, the first one first."""
        self._is_any = bool(policy.is_on) or policy.twice_from_s is not None

    def sent(self, job: Job) -> None:
        """Note that a job is sent to Triton now, and send it to another server when it is late."""
        if not self._is_any or job.is_hedge:
            return
        self._asked_units += _units(job)
        self._asked_requests += 1
        model = job.request.model
        if not self._fleet.models[model].spec.is_repeatable or len(self._fleet.holders.get(model, ())) < 2:
            return
        if self._is_twice(job):
            self._hedge(job, looks=1)
        elif self._policy.is_on and (after_s := self._delays.delay_s(model, _SIZE)) < inf:
            self._clock.at(self._clock.now_s + after_s, self._hedge, job, 1)

    def answered(self, job: Job) -> None:
        """Note that a job is answered, before its other one if it has one; that one has lost."""
        model, now_s, other = job.request.model, self._clock.now_s, job.other
        if not self._is_any:
            return
        noticed_s = now_s + job.request.noticed_late_s
        if job.is_hedge and other is not None:
            self._delays.note_censored(model, _SIZE, noticed_s - other.sent_s)
        else:
            self._delays.note_answer(model, _SIZE, noticed_s - job.sent_s)
        if other is not None:
            self._outcome.hedges[Hedge.WON if job.is_hedge else Hedge.LOST] += 1
            if not other.has_ended:
                other.has_lost = True
                self._clock.at(now_s + CANCEL_AFTER_S, self._cancel, other)

    def freed(self, server: Server, model: str) -> None:
        """Note that a job has ended on this server: the late one that has waited longest looks again."""
        late = self._late.get(model)
        if not late or server.replicas[model].in_flight >= self._fleet.models[model].spec.instances:
            return
        if (job := next((each for each in late if each.server != server.name), None)) is not None:
            self._try_hedge(job)

    def _hedge(self, job: Job, looks: int) -> None:
        """Send a job to an idle server as well, or look for one again; this is look number `looks`."""
        if self._try_hedge(job):
            return
        if looks == 1:
            self._outcome.hedges[Hedge.NO_IDLE_SERVER] += 1
            self._late.setdefault(job.request.model, {})[job] = None
        self._clock.at(self._clock.now_s + looks_again_after_s(looks), self._hedge, job, looks + 1)

    def _try_hedge(self, job: Job) -> bool:
        """Whether a job need not look again: it is sent to an idle server as well, must not be, or has been answered."""
        model = job.request.model
        if not job.has_ended and job.other is None:
            server = idle_server(self._fleet, model, avoid={job.server})
            if server is None:
                return False
            if self._is_twice(job) or self._may_spend(_units(job)):
                job.other = Job(job.request, job.expected_s, job.deadline_s, is_hedge=True, other=job)
                self._servers[server.name].admit(job.other)
        self._late.get(model, {}).pop(job, None)
        return True

    def _may_spend(self, units: float) -> bool:
        """Spend so many compute units of the retry budget; False where it has not so many."""
        self._budget = self._budget.refilled(self._asked_units, self._asked_requests, self._clock.now_s, processes=1)
        self._asked_units, self._asked_requests = 0.0, 0
        after = self._budget.spent(units)
        self._budget = after or self._budget
        return after is not None

    def _cancel(self, loser: Job) -> None:
        if (server := self._servers.get(loser.server)) is not None:
            server.cancel(loser)

    def _is_twice(self, job: Job) -> bool:
        """Whether it goes to two servers from the start."""
        if self._policy.twice_from_s is None:
            return False
        expected_s = self._delays.expected_s(job.request.model, _SIZE)
        return (job.expected_s if expected_s == inf else expected_s) >= self._policy.twice_from_s


def _units(job: Job) -> float:
    """Compute units that a job counts for: a unit is a millisecond."""
    return 1e3 * job.expected_s
