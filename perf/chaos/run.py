"""What one drill found, in figures."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """One drill; NaN for what it does not measure."""

    asked: int = 0
    """Requests of the harmless callers from the fault to the end of the drill."""
    failed: int = 0
    failed_repeatable: int = 0
    refused_repeatable: int = 0
    """Of these, those who were told when to come again."""
    last_failure_s: float = math.nan
    """From the fault."""
    longest_s: float = math.nan
    """That an answer took."""
    longest_repeatable_s: float = math.nan
    """The same of requests that may be computed twice."""
    slow_until_s: float = math.nan
    """From the fault until the last request was sent that took longer than a second, or failed."""
    whole_again_s: float = math.nan
    """From the fault until every process and replica is there again; NaN if that takes longer than was waited."""
    streams: float = math.nan
    """Answers that come piece by piece, from the fault to the end of the drill; what became of them is in `answers.Streamed`."""
    streams_refused: float = math.nan
    streams_failed: float = math.nan
    streams_broken_off: float = math.nan
    streams_lost: float = math.nan
    streams_cut_short: float = math.nan
    streams_last_failure_s: float = math.nan
    streams_longest_s: float = math.nan
    goodput: float = math.nan
    """Answers in time, of the peak's rate."""
    http_part: float = math.nan
    """Of the answers in time."""
    refused_p90_ms: float = math.nan
    grown_mib: float = math.nan
    """Memory of gateway and Triton, from the beginning of an overload to its end."""
    normal_after_s: float = math.nan
    """Until one who asks alone is answered as before an overload."""
