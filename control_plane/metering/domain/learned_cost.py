"""Usual cost of a row of a model: an exponentially decaying average over Triton's statistics; pure.

`metering/compute_costs` uses it to estimate requests before they are computed. The first executions after a
load are slower than later ones (memory, kernels, caches), so they count only until there are others.
"""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.triton.compute_time import NOTHING, Computed, ComputeTime

_HALF_LIFE_S = 10.0
"""Half-life of the average for a model in use: a change of its cost is learned within a minute."""
_MAX_DECAY_S = 5.0
"""Longest time by which one poll lets the average decay: a pause in a model's use says nothing about its
cost."""


def newly_computed(before: ComputeTime | None, counted: ComputeTime) -> tuple[Computed, bool]:
    """Return the compute time since the poll before, and whether it includes the first executions after a
    load.

    A counter that has fallen was reset: Triton has restarted or reloaded the model.
    """
    if before is None or counted.inferences < before.inferences or counted.compute_ns < before.compute_ns:
        before = ComputeTime()
    rows = counted.inferences - before.inferences
    return Computed(rows, (counted.compute_ns - before.compute_ns) / 1e6), rows > 0 and before.inferences == 0


@dataclass(frozen=True, slots=True)
class LearnedCost:
    """Decaying sums of rows and milliseconds."""

    after_loads: Computed = NOTHING
    """Sums of polls that included the first executions after a load."""
    steady: Computed = NOTHING

    @property
    def mean_ms(self) -> float | None:
        """Milliseconds of an instance per row; None until a row was computed."""
        known = self.steady if self.steady.rows else self.after_loads
        return known.ms / known.rows if known.rows else None


def learn(known: LearnedCost, *, after_load: Computed, steady: Computed, elapsed_s: float) -> LearnedCost:
    """Update the average by a poll's compute time over all servers, `elapsed_s` after the poll before."""
    kept = 0.5 ** (min(elapsed_s, _MAX_DECAY_S) / _HALF_LIFE_S)
    return LearnedCost(_faded(known.after_loads, after_load, kept), _faded(known.steady, steady, kept))


def _faded(known: Computed, new: Computed, kept: float) -> Computed:
    return Computed(kept * known.rows + new.rows, kept * known.ms + new.ms) if new.rows else known
