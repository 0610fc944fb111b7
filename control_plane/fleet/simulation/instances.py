"""Instances of a simulated server: the queue before them, the requests they compute, and cancellation.

They behave as Triton's do: a cancelled request is dropped from the queue; one that is computed ends early only if its model heeds
cancellation, and nobody is told when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from control_plane.fleet.domain.fleet import NEVER_S, Fleet
from control_plane.fleet.domain.routing.hedging import lingers_s
from control_plane.fleet.simulation.clock import Clock
from control_plane.fleet.simulation.hedging import SimulatedHedging
from control_plane.fleet.simulation.job import Job
from control_plane.fleet.simulation.outcome import SimulationResult
from control_plane.fleet.simulation.workload import ModelCost


@dataclass(frozen=True, slots=True)
class SharedState:
    """Clock, fleet, outcome and callbacks that all servers of one simulation share."""

    clock: Clock
    fleet: Fleet
    outcome: SimulationResult
    costs: Mapping[str, ModelCost]
    """By model."""
    hedging: SimulatedHedging
    victims: Callable[[str, str], Sequence[str] | None]
    """`Router.victims`: the models to evict for a model on a server."""
    reroute: Callable[[str], None]
    """Routes the requests that wait for this model anew, if they may move."""


class SimulatedInstances:
    """Instances of one simulated server, which work on the requests that it is sent in their order."""

    def __init__(self, parallel: int, surroundings: SharedState, release: Callable[[Job], None]) -> None:
        """The instances work on `parallel` requests at a time. `release` is told of each job that the server no longer
        counts as busy with."""
        self.may_begin = True
        self._parallel = parallel
        self._around, self._clock = surroundings, surroundings.clock
        self._release = release
        self._queue: deque[Job] = deque()
        self._running: dict[Job, None] = {}
        self._lingering: list[tuple[float, Job]] = []
        """Since when the server counts as busy with which cancelled jobs."""
        self._stands_until_s = NEVER_S
        self._is_gone = False

    def send(self, jobs: Sequence[Job]) -> None:
        """Queue jobs whose model is ready, and begin what can begin."""
        self._queue.extend(jobs)
        for job in jobs:
            job.sent_s = self._clock.now_s
        self._serve()
        for job in jobs:
            self._around.hedging.sent(job)

    def pause(self, for_s: float) -> None:
        """Stand still for so long: what runs ends later, and nothing begins."""
        now_s = self._clock.now_s
        more_s = now_s + for_s - max(now_s, self._stands_until_s)
        if more_s > 0:
            self._stands_until_s = now_s + for_s
            for job in self._running:
                job.ends_s += more_s
            self._clock.at(self._stands_until_s, self._serve)

    def cancel(self, job: Job) -> None:
        """Cancel a job that is superfluous, unless it has ended. The server counts as busy with it for a while."""
        if self._is_gone or job.has_ended or job.is_cancelled:
            return
        job.is_cancelled = True
        now_s, heeds_after_s = self._clock.now_s, self._around.costs[job.request.model].heeds_after_s
        if job not in self._running:
            self._queue.remove(job)
        elif heeds_after_s is not None:
            self._clock.at(now_s + heeds_after_s, self._heed, job)
        held = now_s, job
        self._lingering.append(held)
        self._clock.at(now_s + lingers_s(now_s - job.sent_s), self._release_held, held)

    def leave(self) -> list[Job]:
        """End all work, and return the jobs whose requests depend on it."""
        self._is_gone = True
        jobs = [*self._running, *self._queue]
        needed = [job for job in jobs if job.is_needed]
        for job in jobs:
            job.has_ended = True
        return needed

    def _serve(self) -> None:
        """Begin queued requests while there is an idle instance."""
        clock, outcome = self._clock, self._around.outcome
        while self._queue and self._can_begin and not self._is_gone:
            job = self._queue.popleft()
            if clock.now_s > job.deadline_s:
                outcome.refused += job.is_needed
                job.has_ended = True
                self._release(job)
                continue
            self._running[job] = None
            outcome.executions += 1
            job.began_s, job.ends_s = clock.now_s, clock.now_s + job.service_s
            clock.at(job.ends_s, self._answer, job)

    @property
    def _can_begin(self) -> bool:
        return self.may_begin and len(self._running) < self._parallel and self._clock.now_s >= self._stands_until_s

    def _answer(self, job: Job) -> None:
        now_s = self._clock.now_s
        if self._is_gone or job not in self._running:
            return
        if now_s < job.ends_s:  # the server has stood still
            self._clock.at(job.ends_s, self._answer, job)
            return
        self._end(job)
        if not job.has_lost:
            self._around.outcome.answer(now_s - job.request.at_s + job.request.noticed_late_s)
            self._around.hedging.answered(job)
            for held in [each for each in self._lingering if each[0] <= job.sent_s]:
                self._release_held(held)
        if not job.is_cancelled:
            self._release(job)
        self._serve()

    def _heed(self, job: Job) -> None:
        if job in self._running and not self._is_gone:
            self._end(job)
            self._serve()

    def _end(self, job: Job) -> None:
        del self._running[job]
        job.has_ended = True
        self._around.outcome.computed_s += self._clock.now_s - job.began_s

    def _release_held(self, held: tuple[float, Job]) -> None:
        if held in self._lingering and not self._is_gone:
            self._lingering.remove(held)
            self._release(held[1])
