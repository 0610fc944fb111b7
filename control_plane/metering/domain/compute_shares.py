"""Division of a model's compute time among the requests that have ended; pure.

Triton's statistics say how many rows a model has computed and how long that took, over all requests. Each row
gets the same share, but no tenant is charged more than the time its requests spent at Triton; what that
leaves goes to the rows that took longer (max-min fairness). So quick and slow requests to one model each pay
for themselves. Rows of others (other gateways, ensembles, direct clients of Triton) get their share too.
Called by `metering/compute_charges` at each poll.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from control_plane.triton.compute_time import Computed, OpenCharge


@dataclass(frozen=True, slots=True)
class Shares:
    """Result of dividing the compute time of one poll."""

    units: tuple[float, ...]
    """Compute units (milliseconds of an instance) of each charge."""
    left_part: float
    """Fraction of the rows whose callers have left that has been computed by now."""
    rest: Computed
    """Compute time of nobody known, or of requests that have not ended yet: carried over to the next poll."""
    late_rows: float = 0.0
    """Rows answered but not yet in the statistics: Triton counts a row a moment after it has answered."""


@dataclass(slots=True)
class _Claim:
    """One party's rows, and the most time that it can be charged for them."""

    rows: float
    most_ms: float
    ms: float = 0.0


def share_out(computed: Computed, charges: Sequence[OpenCharge], *, late_rows: float = 0.0) -> Shares:
    """Divide `computed` among `charges`; `late_rows` are those of the polls before.

    Answered rows were certainly computed. Of the rows that failed, or whose callers left, as many were
    computed as Triton counted beyond the answered ones.
    """
    answered, uncertain = sum(one.answered_rows for one in charges), sum(one.failed_rows + one.left_rows for one in charges)
    beyond = max(0.0, computed.rows - answered - late_rows)
    part = min(1.0, beyond / uncertain) if uncertain else 0.0
    waiting = [_Claim(one.answered_rows + part * one.failed_rows, one.answered_ms + part * one.failed_ms) for one in charges]
    gone = [_Claim(part * one.left_rows, inf) for one in charges]
    others = _Claim(max(0.0, beyond - part * uncertain), inf)
    over_ms = _fill(computed.ms, [*waiting, *gone, others])
    units = tuple(here.ms + left.ms for here, left in zip(waiting, gone, strict=True))
    return Shares(units, part, Computed(others.rows, others.ms + over_ms), max(0.0, answered + late_rows - computed.rows))


def _fill(ms: float, claims: Iterable[_Claim]) -> float:
    """Give each row the same time, but no claim more than its most; return the time that is left over.

    This is max-min fairness by progressive filling: claims in the order in which they are filled.
    """
    open_ = sorted((claim for claim in claims if claim.rows > 0), key=lambda claim: claim.most_ms / claim.rows)
    # Added up from the end: what is left of a sum from which the others are subtracted may round to 0.
    still_open = reversed([*accumulate(claim.rows for claim in reversed(open_))])
    for claim, rows in zip(open_, still_open, strict=True):
        claim.ms = min(claim.most_ms, ms * claim.rows / rows)
        ms = max(0.0, ms - claim.ms)
    return ms


def estimate(charge: OpenCharge, mean_ms: float) -> float:
    """Estimate the units of answered rows by a row's usual time, where Triton's statistics lack them."""
    return min(charge.answered_ms, charge.answered_rows * mean_ms)
