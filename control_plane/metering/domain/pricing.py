"""Pricing of usage: the choice of the price in force, and the rows of a report; pure.

Usage is summed by day (UTC), so a price that changes within a day holds from the next one: all of a day is
charged at the price in force at its start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import groupby
from math import fsum

from control_plane.metering.domain.usage import Usage, UsageKey
from control_plane.metering.domain.usage_report import Dimension, UsageRow
from control_plane.objects.domain.price import Price

Totals = Iterable[tuple[UsageKey, Usage]]


def price_in_force(prices: Iterable[Price], key: UsageKey) -> Price | None:
    """Return the price of a day's usage; None where there is none.

    The most specific price wins: first a tenant's own over everybody's, then a model's full name, then the
    glob with the most literal letters, then the latest start.
    """
    start_s = datetime.fromisoformat(key.day).replace(tzinfo=UTC).timestamp()
    fitting = [
        price for price in prices if price.from_s <= start_s and price.tenant in ("", key.tenant) and fnmatchcase(key.model, price.models)
    ]
    return max(fitting, key=lambda price: _rank(price, key), default=None)


def _rank(price: Price, key: UsageKey) -> tuple[bool, bool, int, str, float, str]:
    letters = sum(letter not in "*?" for letter in price.models)
    return price.tenant != "", price.models == key.model, letters, price.models, price.from_s, price.name


def report_rows(totals: Totals, prices: Sequence[Price], by: Sequence[Dimension]) -> tuple[UsageRow, ...]:
    """Return a row for each combination of the dimensions `by` that occurs, sorted; one row for everything if
    `by` is empty.
    """

    def group(total: tuple[UsageKey, Usage]) -> tuple[str, ...]:
        return tuple(getattr(total[0], dimension) for dimension in by)

    return tuple(_row(values, list(members), prices) for values, members in groupby(sorted(totals, key=group), group))


def _row(group: tuple[str, ...], totals: Sequence[tuple[UsageKey, Usage]], prices: Sequence[Price]) -> UsageRow:
    costs: dict[str, list[float]] = defaultdict(list)
    unpriced: list[float] = []
    for key, usage in totals:
        price = price_in_force(prices, key)
        if price is None:
            unpriced.append(usage.compute_units)
        else:
            costs[price.currency] += (
                price.per_unit * usage.compute_units,
                price.per_input_token * usage.input_tokens,
                price.per_output_token * usage.output_tokens,
            )
    # fsum is exact, so the cents do not depend on the order of the sums.
    sums = {currency: fsum(parts) for currency, parts in sorted(costs.items())}
    return UsageRow(group, sum((usage for _, usage in totals), Usage()), sums, fsum(unpriced))
