"""Evidence of one rollout: the gates, fed with what became of the requests that it assigned.

Each unit (what sticks: a caller, a sequence, or a request's contents) counts once for each gate, by its first outcome:
the rest is not independent of that, and one caller who always fails is one sample. Tenants are kept apart (`strata`),
since one may have many units. What is slow is set by the present model's first answers, and stays as it is from then
on. Pure; called by `rollout/rollouts` and `rollout/shared_evidence`.
"""

from __future__ import annotations

from collections import Counter

from control_plane.inference.domain.observation import Observation, Pair
from control_plane.objects.domain.rollout import Rollout
from control_plane.rollout.domain.agreement import completed
from control_plane.rollout.domain.findings import DISAGREEMENT, FAULTS, SLOW, SLOWER, Findings, Sums, gates_of
from control_plane.rollout.domain.strata import StratifiedGate, stratum_of

THRESHOLD_SAMPLES = 300
"""Answers of the present model by which its median and 99th percentile are set."""
LEAST_SLOWER_S = 0.002
"""Time by which an answer has to be slower at least: about so much more costs being asked rarely. At 5 percent of the requests
a copy of a model of 0.6 ms took 0.05 to 0.2 ms longer than the model itself (2 cores; its process sleeps between requests
and finds the processor's caches cold), which a test that sees a difference of ten percent takes for a slower version."""
_MAX_UNITS = 100_000
"""Units that are remembered; beyond, a part of all units counts, by their digests."""
_ALL = 2**32


class Evidence:
    """Evidence of one rollout, as one process has it."""

    def __init__(self, rollout: Rollout) -> None:
        self.gates = {name: StratifiedGate() for name in gates_of(rollout)}
        self._id = rollout.id
        self.median_s: float | None = None
        self.p99_s: float | None = None
        self._alpha = rollout.alpha
        self._slower_by = rollout.slower_by
        self._may_differ = None if rollout.agreement is None else completed(rollout.agreement).may_differ
        self._units: set[int] = set()
        self._heard = Counter[int]()
        """Units by stratum."""
        self._timed: set[int] = set()
        """Units of which an answer's time was judged: their first one since the thresholds are set."""
        self._below = _ALL
        self._firsts: list[float] = []
        self._step_samples = 0

    def begin_step(self) -> None:
        """Count the samples of the present step anew; the evidence goes on."""
        self._close_blocks()
        self._step_samples = 0

    def add(self, seen: Observation) -> None:
        """Count an observation."""
        if seen.digest >> 32 >= self._below:
            return
        if seen.pair is not None:
            self._add_pair(seen, seen.pair)
            return
        stratum = stratum_of(self._id, seen.tenant)
        if seen.digest not in self._units:
            self._hear(seen, stratum)
            self.gates[FAULTS].stratum(stratum).add(is_stable=seen.is_stable, is_bad=seen.is_fault)
            self._bound()
        if seen.is_fault:
            return  # it says nothing of how long an answer takes
        if self.median_s is None or self.p99_s is None:
            if seen.is_stable:
                self._learn(seen)
        elif seen.digest not in self._timed:
            self._timed.add(seen.digest)
            # Not before: a step that is over while nobody knows yet what is slow would let a slow version through.
            self._step_samples += not seen.is_stable
            self._add_time(stratum, is_stable=seen.is_stable, took_s=seen.took_s)

    def _add_pair(self, seen: Observation, pair: Pair) -> None:
        """Count a copied request. How long it took says little: it was computed alone, and not while others waited."""
        if seen.digest in self._units:
            return
        stratum = stratum_of(self._id, seen.tenant)
        self._hear(seen, stratum)
        self._step_samples += 1
        self.gates[FAULTS].stratum(stratum).add_pair(canary_is_bad=seen.is_fault, stable_is_bad=pair.stable_is_fault)
        if self._may_differ is not None and pair.differs is not None:
            self.gates[DISAGREEMENT].stratum(stratum).add_against(self._may_differ, is_bad=pair.differs)
        self._bound()

    def _hear(self, seen: Observation, stratum: int) -> None:
        self._units.add(seen.digest)
        self._heard[stratum] += 1

    def tick(self) -> None:
        """Judge what has come since the last tick; to be called about once a second."""
        self._close_blocks()

    def forget_units(self) -> None:
        """Give back the memory of a rollout that has ended: nothing is added to its evidence any more, which stays as it is."""
        self._units.clear()
        self._timed.clear()
        self._firsts.clear()

    def sums(self, stage: int) -> Sums:
        """Return what is to be added to that of other processes; `stage` is the present one's number."""
        return Sums(stage, self._step_samples, {name: gate.sums for name, gate in self.gates.items()}, dict(self._heard))

    @property
    def findings(self) -> Findings:
        """What this process says alone."""
        return Findings(self.gates, self._step_samples, self._alpha, self._heard)

    def _bound(self) -> None:
        if len(self._units) > _MAX_UNITS:
            self._below //= 2
            self._units = {each for each in self._units if each >> 32 < self._below}
            self._timed &= self._units

    def _learn(self, seen: Observation) -> None:
        """Set the thresholds by the present model's first answers, which are not judged by them."""
        self._firsts.append(seen.took_s)
        if len(self._firsts) >= THRESHOLD_SAMPLES:
            ordered = sorted(self._firsts)
            self.median_s, self.p99_s = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
            self._firsts.clear()

    def _add_time(self, stratum: int, *, is_stable: bool, took_s: float) -> None:
        assert self.median_s is not None
        assert self.p99_s is not None
        told_s = took_s if is_stable else took_s / self._slower_by - LEAST_SLOWER_S
        self.gates[SLOWER].stratum(stratum).add(is_stable=is_stable, is_bad=told_s > self.median_s)
        self.gates[SLOW].stratum(stratum).add(is_stable=is_stable, is_bad=told_s > self.p99_s)

    def _close_blocks(self) -> None:
        for gate in self.gates.values():
            gate.close_block()
