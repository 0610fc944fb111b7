"""Lanes for requests that yield to all others: what they compute is preempted by whatever else wants the CPU.

What a model computes cannot be interrupted, so a request that comes meanwhile would wait for it. Linux schedules threads,
though: with the policy SCHED_IDLE for these lanes' threads, and for those of a session of their own, which inherit it, others' requests
run at once in the lanes beside them, however long a batch in the background takes, and it gets what they leave idle. On a host that
is busy with something else for long that is next to nothing, so whoever sends such a request sends it unmarked when it tries again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from python_backends.batching.batch_queue import Batch, BatchQueue, Waiter
from python_backends.batching.lanes import Compute, Lanes, Pending
from python_backends.batching.plan import CostColumns
from python_backends.runtime.execution import Answer

Request = TypeVar("Request", bound=Pending)


def yield_cpu() -> None:
    """Let all other threads interrupt the calling one, and those that it will start, where the host allows that; for good.

    A thread that is only nice runs on for its slice of some 3 ms (EEVDF, since Linux 6.6) when another one wakes up, and a request
    wakes up five on its way.
    """
    with suppress(OSError):
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))


class BackgroundLanes(Generic[Request]):
    """One lane in the background with a model of its own, opened with its first request: many models never get one."""

    def __init__(self, columns: CostColumns, open_model: Callable[[], Compute[Request]]) -> None:
        """`open_model` is called on a thread of the lane, so that the threads it starts yield, too."""
        self._columns = columns
        self._open_model = open_model
        self._compute: Compute[Request] | None = None
        self._lanes: Lanes[Request] | None = None

    @property
    def waiting_rows(self) -> int:
        """Rows of the requests in the queue."""
        return 0 if self._lanes is None else self._lanes.waiting_rows

    def submit(self, waiters: Iterable[Waiter[Request]]) -> None:
        """Put these requests into the queue."""
        if self._lanes is None:
            self._lanes = Lanes(BatchQueue(self._columns, lanes=1), self._run, count=1, begin=yield_cpu)
        self._lanes.submit(waiters)

    def close(self) -> None:
        """Return when everything submitted is answered."""
        if self._lanes is not None:
            self._lanes.close()

    def _run(self, batch: Batch[Request]) -> Sequence[Answer]:
        if self._compute is None:  # one batch runs at a time
            self._compute = self._open_model()
        return self._compute(batch)
