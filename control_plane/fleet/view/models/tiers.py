"""Port that tells the tier of a model's files, which determines how long a load takes."""

from __future__ import annotations

from typing import Protocol

from control_plane.models.domain.description import Tier


class Tiers(Protocol):
    """Port to the tiers that each model's files are in: `models/tiers/warm_tier_manager`."""

    def tier_of(self, model: str) -> Tier:
        """The model's tier: WARM, or COLD if its files must be fetched first."""

    def expected_fetch_s(self, model: str) -> float:
        """Seconds that the fetch would take now."""
