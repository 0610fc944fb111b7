"""What a row of a model usually costs: learned from what Triton counts, look by look, with the recent weighted most.

Expected of requests before they are computed, by `metering/compute_costs`. A model's first executions after a load do what later
ones need not do (memory, kernels, caches); they count only until there are others.
"""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.triton.compute_time import NOTHING, Computed, ComputeTime

_HALF_LIFE_S = 10.0
"""Of what is known of a model that is in use: one that has changed is known within a minute."""
_MOST_FADED_S = 5.0
"""At a time: a pause in its use says nothing of its cost."""


def newly_computed(before: ComputeTime | None, counted: ComputeTime) -> tuple[Computed, bool]:
    """What a Triton has computed since a look before, and whether a load's first executions are among it.

    A count that has gone back is one that began anew.
    """
    if before is None or counted.inferences < before.inferences or counted.compute_ns < before.compute_ns:
        before = ComputeTime()
    rows = counted.inferences - before.inferences
    return Computed(rows, (counted.compute_ns - before.compute_ns) / 1e6), rows > 0 and before.inferences == 0


@dataclass(frozen=True, slots=True)
class LearnedCost:
    """Sums over what was computed, those of long ago next to nothing."""

    after_loads: Computed = NOTHING
    """Of looks that had a load's first executions among them."""
    steady: Computed = NOTHING

    @property
    def mean_ms(self) -> float | None:
        """Milliseconds of an instance per row; None until there was one."""
        known = self.steady if self.steady.rows else self.after_loads
        return known.ms / known.rows if known.rows else None


def learn(known: LearnedCost, *, after_load: Computed, steady: Computed, elapsed_s: float) -> LearnedCost:
    """What is known after a look that found so much more, on all servers, `elapsed_s` after the one before."""
    kept = 0.5 ** (min(elapsed_s, _MOST_FADED_S) / _HALF_LIFE_S)
    return LearnedCost(_faded(known.after_loads, after_load, kept), _faded(known.steady, steady, kept))


def _faded(known: Computed, new: Computed, kept: float) -> Computed:
    return Computed(kept * known.rows + new.rows, kept * known.ms + new.ms) if new.rows else known
