"""Thread pool that runs batches: whenever a lane is free the next batch is planned anew, so that a short text
overtakes pages.

`submit` does not wait: each request is answered through its own `answer` when its batch is done. Every
submitted request is answered exactly once, unless the sending itself fails, and `close` returns after the
last answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from python_backends.batching.batch_queue import Batch, BatchQueue, Waiter
from python_backends.runtime.errors import ExecutionError
from python_backends.runtime.execution import Answer

LOGGER = logging.getLogger(__name__)


class Pending(Protocol):
    """A request that can be answered later, from any thread."""

    def answer(self, answer: Answer) -> None: ...


Request = TypeVar("Request", bound=Pending)
Compute = Callable[[Batch[Request]], Sequence[Answer]]


class Lanes(Generic[Request]):
    """Thread pool over one queue that runs at most `count` batches at a time.

    `compute` returns an answer for each waiter of a batch, in order. There is one more thread than lanes:
    while one thread sends answers, each of which is a round trip to the server, another one computes.
    """

    def __init__(self, waiting: BatchQueue[Request], compute: Compute[Request], *, count: int) -> None:
        self._waiting = waiting
        self._compute = compute
        self._running: list[Batch[Request]] = []
        self._closing = False
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._ended = threading.Condition(lock)
        # Daemon threads, so that an interpreter that ends without `close` does not wait for them for ever.
        self._threads = [threading.Thread(target=self._serve, name=f"lane-{index}", daemon=True) for index in range(count + 1)]
        for thread in self._threads:
            thread.start()

    @property
    def waiting_rows(self) -> int:
        """Rows of the requests in the queue."""
        return self._waiting.rows

    def submit(self, waiters: Iterable[Waiter[Request]]) -> None:
        """Put these requests into the queue together, so that the first of them does not run alone."""
        with self._changed:
            for waiter in waiters:
                self._waiting.add(waiter)
            self._changed.notify()

    def hold(self, seconds: float) -> None:
        """Wait until a batch has ended, for at most `seconds`; return at once unless a batch runs and
        requests wait.
        """
        with self._changed:
            if self._running and len(self._waiting):
                self._ended.wait(seconds)

    def try_compute_inline(self, waiters: Sequence[Waiter[Request]]) -> Sequence[Answer] | None:
        """Compute the answers of `waiters` in the caller's thread if that delays no other request; else
        return None.

        It delays no other if the queue is empty, a lane is free, and they are one batch so short that nothing
        could overtake it. After None the caller must `submit` them.
        """
        with self._changed:
            batch = self._waiting.at_once(waiters, self._running)
            if batch is None:
                return None
            self._running.append(batch)
        return self._run(batch)

    def close(self) -> None:
        """Return when everything submitted is answered and all threads have ended; nothing may be submitted
        afterwards.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while (batch := self._next()) is not None:
            answers = self._run(batch)
            for waiter, answer in zip(batch.waiters, answers, strict=True):
                send_answer(waiter.request, answer)
            # These locals would keep the tensors' shared memory in use until the next batch comes.
            del batch, answers, waiter, answer

    def _next(self) -> Batch[Request] | None:
        """Wait for a batch to run and mark it as running; return None when the pool closes."""
        with self._changed:
            while True:
                try:
                    batch = self._waiting.take(time.monotonic(), self._running)
                except Exception as exc:
                    LOGGER.exception("planning failed")
                    self._refuse_all(exc)
                    continue
                if batch is not None:
                    self._running.append(batch)
                    # There may be a free lane for another batch.
                    self._wake()
                    return batch
                if self._closing and not len(self._waiting):
                    # Wake the threads that still sleep because the queue held nothing that could run then.
                    self._changed.notify_all()
                    return None
                self._changed.wait()

    def _run(self, batch: Batch[Request]) -> Sequence[Answer]:
        try:
            answers = self._compute(batch)
            if len(answers) != len(batch.waiters):
                raise ValueError(f"{len(answers)} answers for {len(batch.waiters)} requests")
            return answers
        except Exception as exc:
            # A thread's root: whatever failed, these requests must be answered and the next batch must run.
            LOGGER.exception("a batch failed")
            return [ExecutionError(f"the batch failed: {exc!r}")] * len(batch.waiters)
        finally:
            with self._changed:
                self._running.remove(batch)
                self._ended.notify_all()
                self._wake()

    def _wake(self) -> None:
        if len(self._waiting):
            self._changed.notify()

    def _refuse_all(self, exc: Exception) -> None:
        for waiter in self._waiting.clear():
            send_answer(waiter.request, ExecutionError(f"planning failed: {exc!r}"))


def send_answer(request: Pending, answer: Answer) -> None:
    """Send a request's answer; where that fails it is logged, so that it does not keep others from being sent."""
    try:
        request.answer(answer)
    except Exception:
        LOGGER.exception("an answer could not be sent")
