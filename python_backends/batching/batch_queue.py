"""Batch queue: holds waiting requests, and decides which batch runs next whenever a lane is free.

All waiting requests are divided into batches (`plan`). The next batch is the one with the highest sum of
response ratios, (waited + cost) / cost, of its requests: Brinch Hansen's HRRN (1971), summed because a batch
answers many. Short requests go first, as their ratio grows fastest, but none starves, since a page's ratio
grows without bound too. In simulations of 32 clients with one page among twenty sentences: "sentences first"
without ageing let pages wait for 8 s and left few sentences to batch (809 requests/s); "oldest first" held
sentences up (p50 28 ms, 1,053/s); weighing answers per millisecond as well held pages for 1.7 s. This rule
gave a p50 of 21 ms, pages within 0.4 s, and 1,049/s.

What has expired is taken before batches are planned, so that it neither fills nor delays one. Deadlines do not
change the order of what waits (docs/decisions/batching.md has what that would cost).

Batches run in lanes. With several lanes, the last free one is reserved for requests that are short compared
with everything running: rows that cost at most a quarter of theirs, in a batch that costs at most a quarter
of each running batch. So a sentence never waits for a page, but waits to run with its equals: when a few
sentences overtook a full batch of their own length, batches shrank from 30 rows to 8, and throughput fell to
0.86 of that of Triton's own batcher, from 0.95 to 0.99 (the latter also for `at_once`; perf/README.md).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from operator import attrgetter
from typing import Generic, TypeVar

from python_backends.batching.plan import CostColumns, Item, plan_batches

Request = TypeVar("Request")

# Largest cost of an overtaking batch, relative to a batch that it overtakes; it delays that batch's answers
# by no more than this share.
OVERTAKING = 0.25

# Most parts that are planned. Planning 32 takes 80 us, and the time grows with the square; beyond that,
# neighbours by length are planned as one part.
MAX_PARTS = 32

_LENGTH = attrgetter("length")


@dataclass(frozen=True, slots=True, eq=False)
class Waiter(Generic[Request]):
    """A waiting request of `rows` rows of one length, in the queue since `since_s`."""

    request: Request
    rows: int
    length: int
    since_s: float
    deadline_s: float = inf
    """When it is no longer worth computing."""

    def has_expired(self, now_s: float) -> bool:
        """Whether its deadline is over."""
        return self.deadline_s <= now_s


@dataclass(frozen=True, slots=True, eq=False)
class Batch(Generic[Request]):
    """Requests that run together, padded to the longest, with their cost by the latency table."""

    waiters: Sequence[Waiter[Request]]
    cost_ms: float

    @property
    def rows(self) -> int:
        """Rows of all requests."""
        return sum(waiter.rows for waiter in self.waiters)

    @property
    def length(self) -> int:
        """Length of the longest request, to which all are padded."""
        return max(waiter.length for waiter in self.waiters)

    @property
    def useful(self) -> int:
        """Requested work: the sum over requests of rows times length."""
        return sum(waiter.rows * waiter.length for waiter in self.waiters)

    @property
    def padded(self) -> int:
        """Computed work: all rows times the longest length."""
        return self.rows * self.length

    def urgency(self, now_s: float) -> float:
        """Sum of the requests' response ratios; the batch with the highest runs next."""
        waited_ms = sum(now_s - waiter.since_s for waiter in self.waiters) * 1e3
        return len(self.waiters) + waited_ms / self.cost_ms


class BatchQueue(Generic[Request]):
    """Queue of requests with the rule for the next batch. Not thread-safe."""

    def __init__(self, columns: CostColumns, *, lanes: int) -> None:
        self.rows = 0
        self._columns = columns
        self._lanes = lanes
        self._waiters: list[Waiter[Request]] = []
        self._next_deadline_s = inf
        """No request expires before it; it may be that of one that is gone."""

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, waiter: Waiter[Request]) -> None:
        """Put a request into the queue; it must not have more rows than a batch may have."""
        insort(self._waiters, waiter, key=_LENGTH)
        self.rows += waiter.rows
        self._next_deadline_s = min(self._next_deadline_s, waiter.deadline_s)

    def take(self, now_s: float, running: Sequence[Batch[Request]]) -> Batch[Request] | None:
        """Remove and return the batch to run now beside the running ones; None if nothing may run now.

        All that has expired comes first, as a batch that costs nothing: it is to be answered, not computed.
        """
        if self._next_deadline_s <= now_s and (expired := self._expire(now_s)):
            return Batch(expired, 0.0)
        limit_ms = self._limit_ms(running)
        # With only the last lane free, usually no request is short enough to overtake; that is seen without a
        # plan.
        waiters = self._waiters if limit_ms == inf else self._overtaking(running, limit_ms)[:MAX_PARTS]
        if not waiters:
            return None
        batch = max(self._planned(waiters, limit_ms), key=lambda batch: batch.urgency(now_s))
        self._remove(batch)
        return batch

    def at_once(self, waiters: Sequence[Waiter[Request]], running: Sequence[Batch[Request]]) -> Batch[Request] | None:
        """Make one batch of `waiters`, which are not in the queue, if it may run at once; else return None.

        It may if the queue is empty, planning makes one batch of them, and no request could overtake it. It
        may not if two further lanes are idle: while the caller's thread computes, it submits nothing to them.
        """
        if self._lanes - len(running) > 2 or self._waiters or not waiters:
            return None
        shortest_ms, row_ms = self._columns(1)[1], self._columns(max(waiter.length for waiter in waiters))[1]
        limit_ms = self._limit_ms(running)
        if row_ms * OVERTAKING > shortest_ms or (limit_ms != inf and row_ms > self._row_limit_ms(running)):
            return None
        ordered = sorted(waiters, key=_LENGTH)
        if sum(waiter.rows for waiter in waiters) > self._columns.max_rows or len(plan_batches(ordered, self._columns)) > 1:
            return None
        batch = self._batch([ordered])
        # In the caller's order, since answers are matched by position.
        return Batch(waiters, batch.cost_ms) if batch.cost_ms <= limit_ms else None

    def clear(self) -> list[Waiter[Request]]:
        """Remove and return all waiting requests."""
        waiters, self._waiters, self.rows = self._waiters, [], 0
        return waiters

    def _expire(self, now_s: float) -> list[Waiter[Request]]:
        """Remove and return all requests whose deadline is over."""
        expired = [waiter for waiter in self._waiters if waiter.has_expired(now_s)]
        self._waiters = [waiter for waiter in self._waiters if not waiter.has_expired(now_s)]
        self.rows -= sum(waiter.rows for waiter in expired)
        self._next_deadline_s = min((waiter.deadline_s for waiter in self._waiters), default=inf)
        return expired

    def _limit_ms(self, running: Sequence[Batch[Request]]) -> float:
        """Return the most that a batch which starts now may cost: 0 without a free lane, inf without a
        reservation.
        """
        free = self._lanes - len(running)
        if free <= 0:
            return 0.0
        return OVERTAKING * min(batch.cost_ms for batch in running) if running and free == 1 else inf

    def _row_limit_ms(self, running: Sequence[Batch[Request]]) -> float:
        """Return the most that a row of an overtaking batch may cost."""
        return OVERTAKING * min(self._columns(batch.length)[1] for batch in running)

    def _overtaking(self, running: Sequence[Batch[Request]], limit_ms: float) -> list[Waiter[Request]]:
        if not limit_ms:
            return []
        row_limit_ms = self._row_limit_ms(running)
        columns = [(waiter, self._columns(waiter.length)) for waiter in self._waiters]
        return [waiter for waiter, column in columns if column[1] <= row_limit_ms and column[waiter.rows] <= limit_ms]

    def _planned(self, waiters: Sequence[Waiter[Request]], limit_ms: float) -> list[Batch[Request]]:
        parts = self._parts(waiters)
        items = [Item(sum(waiter.rows for waiter in part), part[-1].length) for part in parts]
        return [self._batch(parts[start:end]) for start, end in plan_batches(items, self._columns, limit_ms=limit_ms)]

    def _parts(self, waiters: Sequence[Waiter[Request]]) -> list[list[Waiter[Request]]]:
        """Group requests, sorted by length, into about `MAX_PARTS` parts, none larger than a batch."""
        size = ceil(len(waiters) / MAX_PARTS)
        parts: list[list[Waiter[Request]]] = []
        rows = 0
        for waiter in waiters:
            rows += waiter.rows
            if parts and len(parts[-1]) < size and rows <= self._columns.max_rows:
                parts[-1].append(waiter)
            else:
                parts.append([waiter])
                rows = waiter.rows
        return parts

    def _batch(self, parts: Sequence[Sequence[Waiter[Request]]]) -> Batch[Request]:
        waiters = [waiter for part in parts for waiter in part]
        return Batch(waiters, self._columns(waiters[-1].length)[sum(waiter.rows for waiter in waiters)])

    def _remove(self, batch: Batch[Request]) -> None:
        gone = set(batch.waiters)
        self._waiters = [waiter for waiter in self._waiters if waiter not in gone]
        self.rows -= batch.rows
