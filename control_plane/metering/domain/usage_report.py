"""Usage as people ask for it: summed over what they do not care about, with what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from control_plane.metering.domain.usage import Usage


class Dimension(StrEnum):
    """What a report can tell apart; also the name of that field in `UsageKey`."""

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
    """By currency, not rounded."""
    unpriced_units: float
    """Compute units that no price covered; they are in no cost."""


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Rows in order of their groups; none where nothing was used."""

    by: tuple[Dimension, ...]
    """Empty: everything in one row."""
    since_day: str
    until_day: str
    """Both included; ISO 8601, in UTC."""
    rows: tuple[UsageRow, ...]
