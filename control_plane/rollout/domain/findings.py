"""Findings: what the gates of a rollout say, by one process's evidence or by that of all gateways added up.

Each process has sums that only it changes, so that a copy that comes twice, or late, does no harm, and what a process
had found before it ended still counts. Pure; called by `evidence`, `rollout/rollouts` and `rollout/shared_evidence`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from control_plane.objects.domain.rollout import Rollout
from control_plane.rollout.domain.gate import Gate, GateSums, log_mean
from control_plane.rollout.domain.strata import StratifiedGate

FAULTS, SLOWER, SLOW = "faults", "slower than the median", "slower than the 99th percentile"
GATES = (FAULTS, SLOWER, SLOW)
"""Faults of servers and models; answers slower than stable's median, and than its 99th percentile."""
DISAGREEMENT = "disagreement"
"""Gate of answers to copied requests that differ from stable's, where the rollout says what that means."""
ENOUGH_OTHERS, ENOUGH_PART = 300, 20
"""Units of other tenants, or a twentieth of one's own, from which his evidence needs theirs: with fewer of both he is nearly all that
there is, and decides."""


def gates_of(rollout: Rollout) -> tuple[str, ...]:
    """Return the names of a rollout's gates."""
    return GATES if rollout.agreement is None else (*GATES, DISAGREEMENT)


@dataclass(frozen=True, slots=True)
class Sums:
    """Counts of one process for one rollout; `gates` by name and stratum."""

    step: int = 0
    """Number of the stage (`Rollout.stage`) that `step_samples` are of."""
    step_samples: int = 0
    gates: Mapping[str, Mapping[int, GateSums]] = field(default_factory=dict)
    heard: Mapping[int, int] = field(default_factory=dict)
    """Units by stratum."""

    @property
    def samples(self) -> int:
        """Samples of all gates, which only grow in number."""
        return sum(each.canary + each.stable for gate in self.gates.values() for each in gate.values())


@dataclass(frozen=True, slots=True)
class GateStatus:
    """State of one gate by the present evidence, as the admin API shows it."""

    name: str
    canary: int
    canary_bad: int
    stable: int
    stable_bad: int
    log_evidence: float
    """Logarithm of the evidence that the canary is worse; it fails where it reaches `fails_at`."""
    fails_at: float


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of a rollout's gates by the present evidence."""

    gates: Mapping[str, StratifiedGate]
    step_samples: int
    """Requests that the next model has computed in the present step, each unit once."""
    alpha: float
    """Chance that one of the gates fails though the canary is no worse."""
    heard: Mapping[int, int] = field(default_factory=dict)
    """Units by stratum."""

    @property
    def failed(self) -> str:
        """Name of the first gate that has failed, also without any one tenant where others are there; empty where none has."""
        return next((name for name, holds in self._suspected if holds), "")

    @property
    def doubt(self) -> str:
        """Why it is not known whether the next model is worse: one tenant's requests alone say so, or say that it is not. Empty
        where that is no question."""
        if self.failed or not (names := [name for name, _ in self._suspected]):
            return ""
        return f"{self._told(names[0])}; that hangs on one tenant's requests, and those of others do not bear it out"

    @property
    def _suspected(self) -> list[tuple[str, bool]]:
        """The gates whose evidence is enough, and whether it holds without any one stratum."""
        found, fails_at = [], Gate.fails_at(self._alpha_per_gate)
        for name, gate in self.gates.items():
            without = gate.without_each()
            if log_mean(without) >= fails_at:
                least = min(without)
                own = self.heard.get(without.index(least), 0)
                others = sum(self.heard.values()) - own
                found.append((name, least >= fails_at or others <= min(ENOUGH_OTHERS, own / ENOUGH_PART)))
        return found

    @property
    def why(self) -> str:
        """Why the next model is worse, such as `faults: 12 of 40 requests, stable 3 of 800`; empty where nothing says so."""
        return self._told(self.failed) if self.failed else ""

    def _told(self, name: str) -> str:
        gate = self.gates[name].whole
        if name == DISAGREEMENT:
            return f"{name}: {gate.canary_bad:,} of {gate.canary:,} answers differ from stable's"
        return f"{name}: {gate.canary_bad:,} of {gate.canary:,} requests, stable {gate.stable_bad:,} of {gate.stable:,}"

    @property
    def statuses(self) -> list[GateStatus]:
        """The gates as they are shown."""
        fails_at = Gate.fails_at(self._alpha_per_gate)
        return [
            GateStatus(name, whole.canary, whole.canary_bad, whole.stable, whole.stable_bad, gate.log_evidence, fails_at)
            for name, gate in self.gates.items()
            for whole in (gate.whole,)
        ]

    def left_s(self, samples: int, passed_s: float) -> float | None:
        """Seconds until the step, which began `passed_s` ago, has so many samples, if they go on coming as they have; None
        while there are none."""
        missing = samples - self.step_samples
        if missing <= 0:
            return 0.0
        return None if not self.step_samples else missing * max(passed_s, 1e-3) / self.step_samples

    @property
    def _alpha_per_gate(self) -> float:
        return self.alpha / len(self.gates)


def added(parts: Collection[Sums], rollout: Rollout) -> Findings:
    """Return what several processes have found together. Samples of another stage than the present one say nothing of it."""
    gates = {name: StratifiedGate.of(part.gates[name] for part in parts if name in part.gates) for name in gates_of(rollout)}
    heard = sum((Counter(part.heard) for part in parts), Counter[int]())
    return Findings(gates, sum(part.step_samples for part in parts if part.step == rollout.stage), rollout.alpha, heard)


def later(one: Sums | None, other: Sums) -> Sums:
    """Return the later of two copies of one process's sums, of which the second may come out of a backup."""
    return other if one is None or _age(other) >= _age(one) else one


def _age(sums: Sums) -> tuple[int, int, int]:
    return sums.samples, sums.step, sums.step_samples
