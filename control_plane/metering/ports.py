"""What metering needs of others: the store of usage, the request log, and models' measured costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from control_plane.metering.domain.compute_units import ModelCost
from control_plane.metering.domain.usage import Usage, UsageBatch, UsageEvent, UsageKey


class ModelCosts(Protocol):
    """What the model repositories say of their models' costs."""

    async def read(self) -> Mapping[str, ModelCost]:
        """By model. What cannot be read is left out."""


class RequestLog(Protocol):
    """A line per request, for people and log collectors."""

    def write(self, event: UsageEvent) -> None:
        """Without waiting; what cannot be written is dropped and counted."""


class UsageSpill(Protocol):
    """Where batches go that the store could not take before the process ended."""

    def batches(self) -> Iterator[UsageBatch]:
        """Those of earlier processes that have not been removed, in order; what cannot be read is left where it is."""

    def write(self, batch: UsageBatch) -> None:
        """Keep it for a later process. Raises StoreUnavailable."""

    def remove(self, batch: UsageBatch) -> None:
        """The store has it. One that is gone already is no error."""


class UsageStore(Protocol):
    """Durable sums of what was used. Each method raises StoreUnavailable when it cannot be reached."""

    async def add(self, batch: UsageBatch) -> None:
        """Count it, once, however often it is sent: a caller that does not know whether it arrived sends it again."""

    async def totals(self, *, since_day: str, until_day: str) -> list[tuple[UsageKey, Usage]]:
        """Sums of the days from `since_day` to `until_day`, both included, in order of their keys; of every batch that was added."""

    async def restore(self, totals: Iterable[tuple[UsageKey, Usage]]) -> None:
        """Hold these sums and nothing else, in one step."""

    async def run(self) -> None:
        """Do what goes on beside the rest, through outages, until cancelled; returns where there is nothing to do."""

    async def close(self) -> None: ...
