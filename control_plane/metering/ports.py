"""Ports of metering: the usage store, the spill folder, the request log, and models' measured costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from control_plane.metering.domain.compute_units import ModelCost
from control_plane.metering.domain.usage import Usage, UsageBatch, UsageEvent, UsageKey, UsageRecord


class ModelCosts(Protocol):
    """Source of models' costs, as the model repositories record them."""

    async def read(self) -> Mapping[str, ModelCost]:
        """Return the costs by model, without models that cannot be read."""


class RequestLog(Protocol):
    """Log with one line per request, for people and log collectors."""

    def write(self, event: UsageEvent) -> None:
        """Write a line later, without waiting; a line that cannot be written is dropped and counted."""


class UsageSpill(Protocol):
    """Durable place for batches that the usage store could not accept before the process ended."""

    def batches(self) -> Iterator[UsageBatch]:
        """Return the batches of earlier processes that are not yet removed, in order; unreadable ones are
        left alone.
        """

    def write(self, batch: UsageBatch) -> None:
        """Keep a batch for a later process. Raises StoreUnavailable."""

    def remove(self, batch: UsageBatch) -> None:
        """Remove a batch that the store has confirmed; one that is already gone is not an error."""


class UsageStore(Protocol):
    """Durable store of usage sums. Each method raises StoreUnavailable when the store cannot be reached."""

    async def add(self, batch: UsageBatch) -> None:
        """Add a batch idempotently: a caller that does not know whether it arrived sends it again."""

    async def add_all(self, batches: Sequence[UsageBatch]) -> None:
        """Add several batches at once, each as `add` does."""

    async def totals(self, *, since_day: str, until_day: str) -> list[tuple[UsageKey, Usage]]:
        """Return the sums of all added batches for the days from `since_day` to `until_day`, both included,
        by key.
        """

    async def recorded(self, after: int, *, limit: int) -> list[UsageRecord]:
        """Return up to `limit` records of added sums with numbers above `after`, oldest first; only the newest are kept.

        A record is there exactly if its sum is in `totals`: both are written at once.
        """

    async def newest_record(self) -> int:
        """Return the number of the newest record, 0 if there is none."""

    async def restore(self, totals: Iterable[tuple[UsageKey, Usage]]) -> None:
        """Replace everything by these sums, atomically."""

    async def run(self) -> None:
        """Do the store's background work, through outages, until cancelled; return if there is none."""

    async def close(self) -> None: ...
