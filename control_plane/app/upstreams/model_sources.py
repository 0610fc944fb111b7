"""Wires the sources of models on this machine: folders, and stores through the warm tier."""

from __future__ import annotations

from pathlib import Path

from control_plane.fleet.adapters.move_log import MoveLog
from control_plane.fleet.domain.counts import FleetCounts
from control_plane.models.adapters.managed_repository import ManagedRepository
from control_plane.models.adapters.warm_tier.tier import DiskWarmTier
from control_plane.models.tiers.warm_tier_manager import WarmTierManager
from control_plane.settings import Settings
from control_plane.triton.adapters.model_config import composing_models
from control_plane.triton.config_name import config_name_in_force


class ModelSources:
    """Sources of the models of embedded Tritons."""

    def __init__(self, settings: Settings, counts: FleetCounts) -> None:
        """`counts` are told of moves between tiers."""
        self._settings = settings
        is_tiered = bool(settings.triton.model_store) and not settings.is_attached
        self.tiers = self._make_tiers(counts) if is_tiered else None

    @property
    def folders(self) -> list[Path]:
        """Folders of models on this machine; with model stores the warm tier's is one of them."""
        own = self._settings.triton.model_repository
        return own if self.tiers is None else [*own, self._warm_dir]

    @property
    def _warm_dir(self) -> Path:
        return self._settings.triton.warm_dir or self._settings.process.state_dir.absolute() / "warm"

    def _make_tiers(self, counts: FleetCounts) -> WarmTierManager:
        from control_plane.models.adapters.model_store import FsspecModelStore  # here: few have stores, all would import fsspec

        triton = self._settings.triton
        config_name = config_name_in_force(triton.model_config_name)
        self._warm_dir.mkdir(parents=True, exist_ok=True)
        own = ManagedRepository(triton.model_repository, self._settings.process.state_dir, config_name=config_name)
        return WarmTierManager(
            stores=[FsspecModelStore(url) for url in triton.model_store],
            warm=DiskWarmTier(self._warm_dir, max_bytes=triton.warm_bytes),
            steps_of=lambda folder: composing_models(folder, config_name),
            observer=MoveLog(counts),
            taken=own.names,
        )
