"""What workers find out about requests under which processes die (`inference/retries/queries_of_death`), kept by the parent for
workers that start later, and told to whoever repairs what died. `workers/parent/workers` passes it on between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from control_plane.inference.domain.queries_of_death import Finding, Suspects
from control_plane.workers.messages.between_workers import FindingShared


class Findings:
    """Register of the queries of death that workers refuse now, bounded as in each of them."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is the machine's monotonic clock, by which workers count, too."""
        self.follow: Callable[[Finding], None] = lambda finding: None
        """Told of all that workers find out."""
        self._now_s = now_s
        self._known = Suspects()

    def take(self, message: FindingShared) -> None:
        self._known.learn(message.finding.digest, message.record, self._now_s())
        self.follow(message.finding)

    def snapshot(self) -> list[FindingShared]:
        """What a worker that starts must refuse. Suspects are not among it: they are answered in a moment."""
        return [FindingShared(*digest, record) for digest, record in self._known.guilty(self._now_s()).items()]
