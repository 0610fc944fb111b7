"""Policy of which attempts at jobs are marked as work that callers' requests interrupt, where a model has a lane for that.

All first attempts are, since callers may come at any moment. What can be interrupted may get nothing of a host that others
keep busy, though: a second attempt is never marked, and once a first one was in vain, the next ones are for callers only.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded
from control_plane.jobs.domain.job import Job

_STARVED_S = 600.0
"""Time for which a host is taken for busy after an attempt in vain. Each costs a job the time of a whole request; callers who come
meanwhile wait once for what was begun before."""


class Yielding:
    """Policy of one process for which attempts at jobs yield to callers' requests."""

    def __init__(self, is_alone: Callable[[], bool], *, now_s: Callable[[], float] = time.monotonic) -> None:
        """`is_alone` says whether there are no callers."""
        self._is_alone = is_alone
        self._now_s = now_s
        self._starved_until_s = float("-inf")

    def yields(self, job: Job) -> bool:
        """Whether the attempt at the job is to be marked."""
        return job.attempts <= 1 and (self._now_s() >= self._starved_until_s or not self._is_alone())

    def failed(self, error: ControlPlaneError) -> None:
        """Learn from the error of an attempt that was marked."""
        if isinstance(error, DeadlineExceeded):
            self._starved_until_s = self._now_s() + _STARVED_S
