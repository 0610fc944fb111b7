"""What waits, and which batch runs next: decided anew each time there is room to run one.

Everything that waits is divided into batches (`plan`). Next is the one whose requests' response ratios, (waited + cost) / cost, have the
highest sum: Brinch Hansen's HRRN (1971), summed because a batch answers many. Short ones go first, as their ratio grows fastest, but
nothing starves: a page's grows without bound, too. In simulations of 32 clients with one page among twenty sentences, sentences first
without ageing let pages wait for 8 s and left few sentences to run together (809 requests/s), oldest first held sentences up (p50 28 ms,
1,053/s), and weighing answers per millisecond as well kept pages for 1.7 s; this rule gave p50 21 ms, pages within 0.4 s, 1,049/s.

Batches run in lanes. With several, the last free one is kept for what is short beside all that runs: rows that cost at most a quarter of
theirs, in a batch that costs at most a quarter of each. So a sentence waits for no page, and one among its equals waits to run with them:
where a few overtook a full batch of their own length, batches of 8 rows were left instead of 30, and 0.86 of the throughput of Triton's own
batcher instead of 0.95 to 0.99 (the latter also for `at_once`; perf/README.md).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from operator import attrgetter
from typing import Generic, TypeVar

from python_backends.batching.plan import CostColumns, Item, divide

Request = TypeVar("Request")

# What an overtaking batch may cost of one that it overtakes, whose answer it delays by no more than this share.
OVERTAKING = 0.25

# Planning 32 parts takes 80 us, and time that grows with the square. Of more waiting items neighbours by length are planned as one.
MOST_PARTS = 32

_LENGTH = attrgetter("length")


@dataclass(frozen=True, slots=True, eq=False)
class Waiter(Generic[Request]):
    """A request of `rows` rows of one length that waits since `since_s`."""

    request: Request
    rows: int
    length: int
    since_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Batch(Generic[Request]):
    """Requests that run together, padded to the longest; what the table says it costs."""

    waiters: Sequence[Waiter[Request]]
    cost_ms: float

    @property
    def rows(self) -> int:
        """Rows of all."""
        return sum(waiter.rows for waiter in self.waiters)

    @property
    def length(self) -> int:
        """The longest."""
        return max(waiter.length for waiter in self.waiters)

    @property
    def useful(self) -> int:
        """Rows times length of each: what was asked for, in units of one row and one step of length."""
        return sum(waiter.rows * waiter.length for waiter in self.waiters)

    @property
    def padded(self) -> int:
        """Rows times length of the whole: what is computed."""
        return self.rows * self.length

    def urgency(self, now_s: float) -> float:
        """The sum of its requests' response ratios: the highest is next."""
        waited_ms = sum(now_s - waiter.since_s for waiter in self.waiters) * 1e3
        return len(self.waiters) + waited_ms / self.cost_ms


class Waiting(Generic[Request]):
    """Requests until they run. Not safe to use from several threads at once."""

    def __init__(self, columns: CostColumns, *, lanes: int) -> None:
        self.rows = 0
        self._columns = columns
        self._lanes = lanes
        self._waiters: list[Waiter[Request]] = []

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, waiter: Waiter[Request]) -> None:
        """Let it wait; it must have at most as many rows as a batch can."""
        insort(self._waiters, waiter, key=_LENGTH)
        self.rows += waiter.rows

    def take(self, now_s: float, running: Sequence[Batch[Request]]) -> Batch[Request] | None:
        """The batch to run now beside those that run; None where nothing waits or what waits has to go on waiting."""
        limit_ms = self._limit_ms(running)
        # Most often nothing may overtake, and to see that needs no plan.
        waiters = self._waiters if limit_ms == inf else self._overtaking(running, limit_ms)[:MOST_PARTS]
        if not waiters:
            return None
        batch = max(self._planned(waiters, limit_ms), key=lambda batch: batch.urgency(now_s))
        self._remove(batch)
        return batch

    def at_once(self, waiters: Sequence[Waiter[Request]], running: Sequence[Batch[Request]]) -> Batch[Request] | None:
        """`waiters`, which do not wait yet, as one batch, if nothing waits, they are planned as one, and nothing could overtake it.

        Nor where it would leave two lanes without work: whoever computes at once hands nothing over meanwhile.
        """
        if self._lanes - len(running) > 2 or self._waiters or not waiters:
            return None
        shortest_ms, row_ms = self._columns(1)[1], self._columns(max(waiter.length for waiter in waiters))[1]
        limit_ms = self._limit_ms(running)
        if row_ms * OVERTAKING > shortest_ms or (limit_ms != inf and row_ms > self._row_limit_ms(running)):
            return None
        ordered = sorted(waiters, key=_LENGTH)
        if sum(waiter.rows for waiter in waiters) > self._columns.max_rows or len(divide(ordered, self._columns)) > 1:
            return None
        batch = self._batch([ordered])
        # The caller's order: answers go by it.
        return Batch(waiters, batch.cost_ms) if batch.cost_ms <= limit_ms else None

    def clear(self) -> list[Waiter[Request]]:
        """All that waits, which then waits no longer."""
        waiters, self._waiters, self.rows = self._waiters, [], 0
        return waiters

    def _limit_ms(self, running: Sequence[Batch[Request]]) -> float:
        """What a batch that starts now may cost; nothing does for no lane."""
        free = self._lanes - len(running)
        if free <= 0:
            return 0.0
        return OVERTAKING * min(batch.cost_ms for batch in running) if running and free == 1 else inf

    def _row_limit_ms(self, running: Sequence[Batch[Request]]) -> float:
        """What a row of a batch that overtakes may cost."""
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
        return [self._batch(parts[start:end]) for start, end in divide(items, self._columns, limit_ms=limit_ms)]

    def _parts(self, waiters: Sequence[Waiter[Request]]) -> list[list[Waiter[Request]]]:
        """These, in order of length, in as many parts as can be planned; one of them is a batch's rows at most."""
        size = ceil(len(waiters) / MOST_PARTS)
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
