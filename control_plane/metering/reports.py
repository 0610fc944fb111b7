"""Usage reports: what was used and what it costs. Called by the admin API and, through it, by the command
line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from control_plane.core.errors import InvalidRequest
from control_plane.metering.domain.pricing import report_rows
from control_plane.metering.domain.usage import Usage, UsageKey
from control_plane.metering.domain.usage_report import Dimension, UsageReport, UsageRow
from control_plane.metering.ports import UsageStore
from control_plane.objects.domain.price import Price


class UsageService:
    """Maker of usage reports from one store; it applies the prices known at the time of the report, also to
    past usage.
    """

    def __init__(self, store: UsageStore, prices: Callable[[], Iterable[Price]]) -> None:
        self._store = store
        self._prices = prices

    async def report(
        self, *, by: Sequence[Dimension], since_day: str, until_day: str, tenant: str | None = None, model: str | None = None
    ) -> UsageReport:
        """Report the days from `since_day` to `until_day`, both included, optionally of one tenant or model.

        Raises:
            InvalidRequest: the days are in the wrong order, or a dimension occurs twice.
            StoreUnavailable: the usage store cannot be reached.
        """
        if since_day > until_day:
            raise InvalidRequest(f"since {since_day} is after until {until_day}")
        if len(set(by)) != len(by):
            raise InvalidRequest(f"by {', '.join(by)}: each of {', '.join(Dimension)} at most once")
        totals = await self._store.totals(since_day=since_day, until_day=until_day)
        # In a thread: a month of 100 tenants and 50 models takes a second or two, in which the event loop would serve nobody.
        rows = await asyncio.to_thread(_rows_of, totals, list(self._prices()), by, tenant=tenant, model=model)
        return UsageReport(tuple(by), since_day, until_day, rows)


def _rows_of(
    totals: Sequence[tuple[UsageKey, Usage]], prices: Sequence[Price], by: Sequence[Dimension], *, tenant: str | None, model: str | None
) -> tuple[UsageRow, ...]:
    wanted = [(key, usage) for key, usage in totals if tenant in (None, key.tenant) and model in (None, key.model)]
    return report_rows(wanted, prices, by)
