"""Values of a usage report: sums grouped by the chosen dimensions, with their costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from control_plane.metering.domain.usage import Usage


class Dimension(StrEnum):
    """Column by which a report can be grouped; the value is the name of the field in `UsageKey`."""

    TENANT = "tenant"
    MODEL = "model"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One line of a report."""

    group: tuple[str, ...]
    """One value for each dimension of the report."""
    usage: Usage
    costs: Mapping[str, float]
    """Currency -> cost, not rounded."""
    unpriced_units: float
    """Compute units that no price covers; they are in no cost."""


@dataclass(frozen=True, slots=True)
class UsageReport:
    """A usage report: rows sorted by group; none where nothing was used."""

    by: tuple[Dimension, ...]
    """Empty: everything in one row."""
    since_day: str
    until_day: str
    """Both included; ISO 8601, in UTC."""
    rows: tuple[UsageRow, ...]
