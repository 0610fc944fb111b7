"""Threads that run what waits: each time a lane is free the next batch is decided anew, so that a short text overtakes pages.

Whoever brings requests (`submit`) does not wait for them: each is answered through its own `answer` when its batch is done. Every request
that was taken on is answered once, whatever fails but the sending itself, and `close` returns after the last of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from python_backends.batching.waiting import Batch, Waiter, Waiting
from python_backends.runtime.errors import ExecutionError
from python_backends.runtime.execution import Answer

LOGGER = logging.getLogger(__name__)


class Pending(Protocol):
    """A request that can be answered later, from any thread."""

    def answer(self, answer: Answer) -> None: ...


Request = TypeVar("Request", bound=Pending)
Compute = Callable[[Batch[Request]], Sequence[Answer]]


class Lanes(Generic[Request]):
    """At most `count` batches at a time, over one queue.

    `compute` gives an answer for each waiter of a batch, in their order. There is one thread more than lanes: while one sends answers, each
    of which is a round trip to the server, another computes.
    """

    def __init__(self, waiting: Waiting[Request], compute: Compute[Request], *, count: int) -> None:
        self._waiting = waiting
        self._compute = compute
        self._running: list[Batch[Request]] = []
        self._closing = False
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._ended = threading.Condition(lock)
        # Daemons, so that an interpreter that ends without `close` does not wait for them for ever.
        self._threads = [threading.Thread(target=self._serve, name=f"lane-{index}", daemon=True) for index in range(count + 1)]
        for thread in self._threads:
            thread.start()

    @property
    def waiting_rows(self) -> int:
        """Rows that wait."""
        return self._waiting.rows

    def submit(self, waiters: Iterable[Waiter[Request]]) -> None:
        """Let these wait; all at once, so that the first of them does not run alone."""
        with self._changed:
            for waiter in waiters:
                self._waiting.add(waiter)
            self._changed.notify()

    def hold(self, seconds: float) -> None:
        """Return when a batch has ended, or after `seconds`; at once where nothing waits behind one that runs."""
        with self._changed:
            if self._running and len(self._waiting):
                self._ended.wait(seconds)

    def compute_at_once(self, waiters: Sequence[Waiter[Request]]) -> Sequence[Answer] | None:
        """The answers of `waiters`, computed in the caller's thread, where that delays nobody; else None, and they are still the caller's.

        Nobody is delayed when nothing waits, a lane is free for them, and they are one batch so short that nothing could overtake it.
        """
        with self._changed:
            batch = self._waiting.at_once(waiters, self._running)
            if batch is None:
                return None
            self._running.append(batch)
        return self._run(batch)

    def close(self) -> None:
        """Return when all that was submitted is answered and no thread is left; nothing may be submitted afterwards."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while (batch := self._next()) is not None:
            answers = self._run(batch)
            for waiter, answer in zip(batch.waiters, answers, strict=True):
                _answer(waiter, answer)
            # Held until the next batch comes, they would keep their memory in the server.
            del batch, answers, waiter, answer

    def _next(self) -> Batch[Request] | None:
        """Wait for a batch to run, which then counts as running; None at the end."""
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
                    # There may be room for another beside it.
                    self._wake()
                    return batch
                if self._closing and not len(self._waiting):
                    # Those that found no batch for them while some waited still sleep.
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
            # The root of this thread's work: whatever it was, these must be answered and the next batch run.
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
            _answer(waiter, ExecutionError(f"planning failed: {exc!r}"))


def _answer(waiter: Waiter[Request], answer: Answer) -> None:
    try:
        waiter.request.answer(answer)
    except Exception:
        # One that cannot be sent must not cost the others theirs.
        LOGGER.exception("an answer could not be sent")
