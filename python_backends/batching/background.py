"""Lanes for requests that yield to all others: what they compute has a queue and threads of its own.

What a model computes cannot be interrupted, so a request that comes meanwhile would wait for it. Linux schedules threads, though: with
a model in a process that yields (`runtime/yielding`) others' requests run at once in the lanes beside these, however long a batch in the
background takes, and it gets what they leave idle. The threads of these lanes do not yield: they share the interpreter with the others.
On a host that is busy with something else for long the model gets next to nothing, so whoever sends such a request sends it unmarked
when it tries again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from python_backends.batching.batch_queue import BatchQueue, Waiter
from python_backends.batching.lanes import Compute, Lanes, Pending
from python_backends.batching.plan import CostColumns

Request = TypeVar("Request", bound=Pending)


class BackgroundLanes(Generic[Request]):
    """One lane in the background, whose threads start with its first request: many models never get one."""

    def __init__(self, columns: CostColumns, compute: Compute[Request]) -> None:
        self._columns = columns
        self._compute = compute
        self._lanes: Lanes[Request] | None = None

    @property
    def waiting_rows(self) -> int:
        """Rows of the requests in the queue."""
        return 0 if self._lanes is None else self._lanes.waiting_rows

    def submit(self, waiters: Iterable[Waiter[Request]]) -> None:
        """Put these requests into the queue."""
        if self._lanes is None:
            self._lanes = Lanes(BatchQueue(self._columns, lanes=1), self._compute, count=1)
        self._lanes.submit(waiters)

    def close(self) -> None:
        """Return when everything submitted is answered."""
        if self._lanes is not None:
            self._lanes.close()
