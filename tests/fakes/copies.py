"""What tests read of copied requests."""

from __future__ import annotations

from collections import Counter

from control_plane.rollout.copy_counts import CopyCounts
from control_plane.telemetry.request_counts import Copied


def copies_of(counts: CopyCounts) -> Counter[Copied]:
    """Copies of all routes by what became of them."""
    sums: Counter[Copied] = Counter()
    for each in counts.results():
        sums[each.result] += each.count
    return +sums
