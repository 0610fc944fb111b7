"""Findings: what the gates of a rollout say, by one process's evidence or by that of all gateways added up.

Each process has sums that only it changes, so that a copy that comes twice, or late, does no harm, and what a process
had found before it ended still counts. Pure; called by `evidence`, `rollout/rollouts` and `rollout/shared_evidence`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from control_plane.objects.domain.rollout import Rollout
from control_plane.rollout.domain.gate import Gate, GateSums

FAULTS, SLOWER, SLOW = "faults", "slower than the median", "slower than the 99th percentile"
GATES = (FAULTS, SLOWER, SLOW)
"""Faults of servers and models; answers slower than stable's median, and than its 99th percentile."""
DISAGREEMENT = "disagreement"
"""Gate of answers to copied requests that differ from stable's, where the rollout says what that means."""


def gates_of(rollout: Rollout) -> tuple[str, ...]:
    """Return the names of a rollout's gates."""
    return GATES if rollout.agreement is None else (*GATES, DISAGREEMENT)


@dataclass(frozen=True, slots=True)
class Sums:
    """Counts of one process for one rollout; `gates` by name."""

    step: int = 0
    """Number of the stage (`Rollout.stage`) that `step_samples` are of."""
    step_samples: int = 0
    gates: Mapping[str, GateSums] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Samples of all gates, which only grow in number."""
        return sum(each.canary + each.stable for each in self.gates.values())


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

    gates: Mapping[str, Gate]
    step_samples: int
    """Requests that the next model has computed in the present step, each unit once."""
    alpha: float
    """Chance that one of the gates fails though the canary is no worse."""

    @property
    def failed(self) -> str:
        """Name of the first gate that has failed; empty where none has."""
        return next((name for name, gate in self.gates.items() if gate.has_failed(self._alpha_per_gate)), "")

    @property
    def why(self) -> str:
        """Why the next model is worse, such as `faults: 12 of 40 requests, stable 3 of 800`; empty where nothing says so."""
        name = self.failed
        if not name:
            return ""
        gate = self.gates[name]
        if name == DISAGREEMENT:
            return f"{name}: {gate.canary_bad:,} of {gate.canary:,} answers differ from stable's"
        return f"{name}: {gate.canary_bad:,} of {gate.canary:,} requests, stable {gate.stable_bad:,} of {gate.stable:,}"

    @property
    def statuses(self) -> list[GateStatus]:
        """The gates as they are shown."""
        fails_at = Gate.fails_at(self._alpha_per_gate)
        return [
            GateStatus(name, gate.canary, gate.canary_bad, gate.stable, gate.stable_bad, gate.log_evidence, fails_at)
            for name, gate in self.gates.items()
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
    gates = {name: Gate.of(part.gates[name] for part in parts if name in part.gates) for name in gates_of(rollout)}
    return Findings(gates, sum(part.step_samples for part in parts if part.step == rollout.stage), rollout.alpha)


def later(one: Sums | None, other: Sums) -> Sums:
    """Return the later of two copies of one process's sums, of which the second may come out of a backup."""
    return other if one is None or _age(other) >= _age(one) else one


def _age(sums: Sums) -> tuple[int, int, int]:
    return sums.samples, sums.step, sums.step_samples
