"""Strata of a gate: its samples kept apart by tenant, so that it can be asked what it says without any one of them.

A tenant belongs to one of a fixed number of strata, by a hash that is another one for each rollout: memory is bounded, and
processes agree without telling each other names. Blocks are judged within a stratum, each arm's samples of the same tenants, and
the evidence of all is their product. What a tenant sends changes one factor, whatever he does: without his stratum the rest is as
anytime-valid as if he were not there. The mean over the strata that may be left out is an e-process, too, which is found even
where one tenant makes a bad version look good. Pure; called by `evidence` and `findings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from operator import sub

from control_plane.rollout.domain.gate import Gate, GateSums, log_mean

STRATA = 16
"""Two tenants share one with a chance of 1/16, and then count as one. More would make blocks of fewer samples each."""


def stratum_of(rollout: str, tenant: str) -> int:
    """Return the stratum of a tenant in the rollout of this id."""
    return blake2b(f"{rollout}\0{tenant}".encode(), digest_size=1).digest()[0] % STRATA


class StratifiedGate:
    """Sequential test of one kind of bad outcome, in strata."""

    def __init__(self, strata: Mapping[int, Gate] | None = None) -> None:
        self._strata = dict(strata or {})

    def stratum(self, number: int) -> Gate:
        """Return the gate of one stratum, to which its samples are added."""
        gate = self._strata.get(number)
        if gate is None:
            gate = self._strata[number] = Gate()
        return gate

    def close_block(self) -> None:
        """Judge the samples since the last block."""
        for gate in self._strata.values():
            gate.close_block()

    @classmethod
    def of(cls, parts: Iterable[Mapping[int, GateSums]]) -> StratifiedGate:
        """Return the gate of several processes."""
        found = list(parts)
        numbers = {number for part in found for number in part}
        return cls({number: Gate.of(part[number] for part in found if number in part) for number in numbers})

    @property
    def sums(self) -> dict[int, GateSums]:
        """The sums of the blocks that were judged, by stratum."""
        return {number: gate.sums for number, gate in self._strata.items()}

    @property
    def whole(self) -> Gate:
        """The gate of all strata together."""
        return Gate.of(gate.sums for gate in self._strata.values())

    def without_each(self) -> tuple[float, ...]:
        """Return the logarithm of the evidence without each stratum, by its number; of one without samples, that of all."""
        own = {number: gate.log_ratios for number, gate in self._strata.items() if any(gate.log_ratios)}
        of_all = [sum(each) for each in zip(*own.values(), strict=True)]
        found = [log_mean(of_all) if own else 0.0] * STRATA
        for number, ratios in own.items():
            found[number] = log_mean(list(map(sub, of_all, ratios)))
        return tuple(found)

    @property
    def log_evidence(self) -> float:
        """Logarithm of the e-process: the mean of the evidence without each stratum."""
        return log_mean(self.without_each())
