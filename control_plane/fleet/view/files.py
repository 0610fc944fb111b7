"""The folders of a fleet's models: what they say, and that they are on this machine before it is decided where a model is loaded.

Of a model that only a store has nothing is known but its name: not how large it is, nor what its owner wants of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from control_plane.fleet.view.state import FleetState
from control_plane.models.domain.description import DescribedModel, ModelSpec, Tier
from control_plane.models.ports import ModelDescriptions
from control_plane.models.tiers.model_tiers import ModelTiers


class FleetFiles:
    """Sees to it, for one process, that a model's files are here and described before it is placed."""

    def __init__(
        self,
        state: FleetState,
        descriptions: ModelDescriptions,
        tiers: ModelTiers | None = None,
        *,
        timeout_s: float,
        require_loadable: Callable[[str], None] | None = None,
    ) -> None:
        """Without `tiers` all models are here. A fetch that takes longer than `timeout_s` goes on, and is waited for no more.
        `require_loadable` is `models/ports.ModelRepository.require_loadable`, which reads
        files; None: servers have folders of their own."""
        self._require_loadable = require_loadable
        self._state = state
        self._descriptions = descriptions
        self._tiers = tiers
        self._timeout_s = timeout_s

    async def describe(self) -> None:
        """Look at the models' folders."""
        described = dict(await asyncio.to_thread(self._descriptions.read))
        if self._tiers is not None:
            cold = set(self._tiers.names()) - described.keys()  # their configurations are read once they have been fetched
            described |= {name: DescribedModel(ModelSpec(name), file_bytes=0) for name in cold}
        elsewhere = set().union(*self._state.listed.values()) - described.keys()  # Tritons that others run have folders of their own
        described |= {name: DescribedModel(ModelSpec(name), file_bytes=0) for name in elsewhere}
        self._state.describe(described, self._tiers)

    def is_cold(self, model: str) -> bool:
        """Whether it has to be fetched first."""
        return self._tiers is not None and self._tiers.tier_of(model) is Tier.COLD

    def expected_fetch_s(self, model: str) -> float:
        """What is left of that."""
        return 0.0 if self._tiers is None else self._tiers.expected_fetch_s(model)

    @asynccontextmanager
    async def here(self, model: str) -> AsyncIterator[None]:
        """A block in which its files are here and stay, and what they say is known; they are fetched first, if need be.

        Raises as `ModelTiers.ensure_warm`; ModelLoadFailed, ModelNotFound: no server could load it.
        """
        if self._tiers is None or model not in self._tiers.names():
            await self._check(model)
            yield
            return
        was_cold = self.is_cold(model)
        await self._tiers.ensure_warm(model, deadline_s=asyncio.get_running_loop().time() + self._timeout_s)
        with self._tiers.pinned(model):
            if was_cold:
                await self.describe()
            await self._check(model)
            yield

    async def _check(self, model: str) -> None:
        if self._require_loadable is not None:
            await asyncio.to_thread(self._require_loadable, model)
