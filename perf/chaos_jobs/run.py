"""What one drill of jobs found, in figures."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """Result of one drill. What counts a wrong is 0 where all is well."""

    accepted: int = 0
    """Jobs that a caller was promised."""
    lines: int = 0
    """Lines of the batches that were promised."""
    faults: int = 0
    lost: int = 0
    """Accepted jobs and lines of which nobody knows any more."""
    unanswered: int = 0
    """Accepted jobs and lines that ended without an answer, though nobody has cancelled them."""
    doubled: int = 0
    """Jobs that one Idempotency-Key has made beside the first, and lines that were answered again."""
    changed: int = 0
    """Final answers and states that are others than callers were told before."""
    wrong: int = 0
    """Answers that are not the synchronous one, byte for byte; an embedding may be rounded otherwise."""
    rounded: int = 0
    """Embeddings whose last bits are not those of the synchronous answer, as with two synchronous ones in other batches."""
    miscounted: int = 0
    """Requests by which the usage that was charged differs from that of the jobs."""
    left_behind: int = 0
    """Tickets, files, records and sums that are left once everything that was kept is over."""
    forgotten: int = 0
    """Jobs that were accepted after the copy to which a drill has set Redis back, and of which nobody knows any more."""
    longest_attempts: int = 0
    """Most attempts that a job needed."""
    seconds: float = math.nan
    """From the first job handed in until all have ended."""
