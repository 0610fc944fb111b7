"""Whose work it was that Triton counted: shares a model's compute time among the requests that have ended.

Triton tells how many rows a model has computed and how long that took, all requests together, and tells it when they are done.
Each row gets the same part of it, but no tenant more than its requests were at Triton: what that leaves is of the rows that
took longer. So, of quick and slow requests to one model, each pays for itself. Rows of nobody here (other gateways', an
ensemble's, whoever asks Triton straight) take part, too. Called by `metering/compute_charges` at each look at the counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from control_plane.triton.compute_time import Computed, OpenCharge


@dataclass(frozen=True, slots=True)
class Shares:
    """What came of one look."""

    units: tuple[float, ...]
    """Of each charge, in milliseconds of an instance."""
    left_part: float
    """Of the rows whose callers have left: the part that has been computed by now."""
    rest: Computed
    """Of nobody here, or of requests that have not ended yet: to be shared once more, with what comes next."""
    late_rows: float = 0.0
    """That were answered and are not counted yet: Triton counts a row a moment after it has answered."""


@dataclass(slots=True)
class _Claim:
    rows: float
    most_ms: float
    ms: float = 0.0


def share_out(computed: Computed, charges: Sequence[OpenCharge], *, late_rows: float = 0.0) -> Shares:
    """Share what was computed among `charges`; `late_rows` are those of the looks before.

    What was answered was computed; of what failed or was left, so many rows were as Triton counted beyond those.
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
    """The same for each row, but no claim more than its most (max-min fairness, by progressive filling); what is over then."""
    open_ = sorted((claim for claim in claims if claim.rows > 0), key=lambda claim: claim.most_ms / claim.rows)
    rows = sum(claim.rows for claim in open_)
    for claim in open_:
        claim.ms = min(claim.most_ms, ms * claim.rows / rows)
        ms, rows = max(0.0, ms - claim.ms), rows - claim.rows
    return ms


def estimate(charge: OpenCharge, mean_ms: float) -> float:
    """Units of what was answered, where Triton's counts do not tell: by what a row usually takes."""
    return min(charge.answered_ms, charge.answered_rows * mean_ms)
