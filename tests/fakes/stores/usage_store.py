from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field

from control_plane.core.errors import StoreUnavailable
from control_plane.metering.domain.usage import Usage, UsageBatch, UsageKey, UsageRecord
from control_plane.metering.domain.usage_text import decode_record, encode_records


@dataclass
class FakeUsage:
    """The stored usage; several `FakeUsageStore`s may share one."""

    sums: dict[UsageKey, Usage] = field(default_factory=dict)
    batches: dict[str, UsageBatch] = field(default_factory=dict)
    records: list[UsageRecord] = field(default_factory=list)


@dataclass
class FakeUsageStore:
    """In-memory `metering/ports.UsageStore`. While it `is_away` every call raises StoreUnavailable; while it
    `loses_answers` it stores what it is given, and raises all the same."""

    usage: FakeUsage = field(default_factory=FakeUsage)
    is_away: bool = False
    loses_answers: bool = False

    async def add(self, batch: UsageBatch) -> None:
        self._reach()
        if batch.id not in self.usage.batches:
            self.usage.batches[batch.id] = batch
            for key, usage in batch.sums:
                self.usage.sums[key] = self.usage.sums.get(key, Usage()) + usage
            begun = len(self.usage.records)
            self.usage.records += [decode_record(n, text) for n, text in enumerate(encode_records(batch, at_s=0.0), begun + 1)]
        if self.loses_answers:
            raise StoreUnavailable("the store does not answer")

    async def add_all(self, batches: Sequence[UsageBatch]) -> None:
        for batch in batches:
            await self.add(batch)

    async def totals(self, *, since_day: str, until_day: str) -> list[tuple[UsageKey, Usage]]:
        self._reach()
        found = [(key, usage) for key, usage in self.usage.sums.items() if since_day <= key.day <= until_day]
        return sorted(found, key=lambda total: astuple(total[0]))

    async def recorded(self, after: int, *, limit: int) -> list[UsageRecord]:
        self._reach()
        return [record for record in self.usage.records if record.number > after][:limit]

    async def newest_record(self) -> int:
        self._reach()
        return len(self.usage.records)

    async def restore(self, totals: Iterable[tuple[UsageKey, Usage]]) -> None:
        self._reach()
        self.usage.sums = dict(totals)

    async def run(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def _reach(self) -> None:
        if self.is_away:
            raise StoreUnavailable("the store is away")
