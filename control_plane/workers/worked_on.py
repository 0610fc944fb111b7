"""What replicas work on for other workers: the oldest requests there, those of all workers but one.

Each worker takes requests back from a replica that hangs, but not the oldest, which may be a long one
(`fleet/domain/health/overdue`). By its own requests alone each would leave one there. `workers/parent/workers` passes this on.
"""

from __future__ import annotations

from collections.abc import Iterable

from control_plane.workers.messages.from_workers import Sent
from control_plane.workers.messages.to_workers import WorkedOnElsewhere


def worked_on(requests: Iterable[Sent]) -> WorkedOnElsewhere:
    """The oldest of these requests at each replica."""
    oldest = dict[tuple[str, str], float]()
    for server, model, sent_s in requests:
        oldest[server, model] = min(sent_s, oldest.get((server, model), sent_s))
    return WorkedOnElsewhere(tuple((*replica, sent_s) for replica, sent_s in sorted(oldest.items())))
