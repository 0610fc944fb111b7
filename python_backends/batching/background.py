"""Lanes for requests that yield to all others: what they compute has a queue and threads of its own.

What a model computes cannot be interrupted, so a request that comes meanwhile would wait for it. Linux schedules threads, though: with
a model in a process that yields (`runtime/yielding`) others' requests run at once in the lanes beside these, however long a batch in the
background takes, and it gets what they leave idle. The threads of these lanes do not yield: they share the interpreter with the others.
On a host that is busy with something else for long the model gets next to nothing, so whoever sends such a request sends it unmarked
when it tries again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from python_backends.batching.batch_queue import BatchQueue, Waiter
from python_backends.batching.lanes import Compute, Lanes, Pending, send_answer
from python_backends.batching.plan import CostColumns
from python_backends.runtime.errors import BackendError, ExecutionError

LOGGER = logging.getLogger(__name__)

Request = TypeVar("Request", bound=Pending)
Prepare = Callable[[Sequence[Request]], Sequence[Sequence[Waiter[Request]] | BackendError]]


class BackgroundLanes(Generic[Request]):
    """One lane in the background, whose threads start with its first request: many models never get one."""

    def __init__(self, columns: CostColumns, prepare: Prepare[Request], compute: Compute[Request]) -> None:
        """`prepare` makes of each request what can wait for batches, such as tokens of texts; in a thread of its own, since
        that of a long document takes longer than a caller's whole request."""
        self._columns = columns
        self._prepare = prepare
        self._compute = compute
        self._lock = threading.Lock()
        self._unprepared_rows = 0
        self._started: tuple[ThreadPoolExecutor, Lanes[Request]] | None = None

    @property
    def waiting_rows(self) -> int:
        """Rows of the requests that are not being computed yet."""
        return 0 if self._started is None else self._unprepared_rows + self._started[1].waiting_rows

    def submit(self, requests: Sequence[Request], rows: int) -> None:
        """Have these requests prepared and computed, which have so many rows together."""
        if self._started is None:
            lanes = Lanes(BatchQueue(self._columns, lanes=1), self._compute, count=1)
            self._started = ThreadPoolExecutor(1, thread_name_prefix="background"), lanes
        preparing, lanes = self._started
        with self._lock:
            self._unprepared_rows += rows
        preparing.submit(self._queue, lanes, requests, rows)

    def close(self) -> None:
        """Return when everything submitted is answered."""
        if self._started is not None:
            preparing, lanes = self._started
            preparing.shutdown()
            lanes.close()

    def _queue(self, lanes: Lanes[Request], requests: Sequence[Request], rows: int) -> None:
        try:
            prepared = self._prepare(requests)
        except Exception as exc:
            # A thread's root: whatever failed, these requests must be answered.
            LOGGER.exception("requests could not be prepared")
            prepared = [ExecutionError(f"the request could not be prepared: {exc!r}")] * len(requests)
        lanes.submit([waiter for each in prepared if not isinstance(each, BackendError) for waiter in each])
        with self._lock:
            self._unprepared_rows -= rows
        for request, each in zip(requests, prepared, strict=True):
            if isinstance(each, BackendError):
                send_answer(request, each)
