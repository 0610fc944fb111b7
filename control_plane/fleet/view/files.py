"""Makes sure that a model's files are on this machine and described before placement decides where it is loaded.

For a model that is only in an object store, nothing but its name is known: neither its size nor its owner's wishes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache

from control_plane.core.errors import ModelLoadFailed
from control_plane.fleet.ports import ServerInstance
from control_plane.fleet.view.state import FleetState
from control_plane.models.domain.description import DescribedModel, ModelSpec, Tier
from control_plane.models.ports import ModelDescriptions
from control_plane.models.tiers.warm_tier_manager import WarmTierManager

_AT_ONCE = 100
"""Models that are described without letting requests through in between: each takes some ten microseconds."""


class FleetFiles:
    """Local model files of a fleet, for one process: fetches what is cold, pins it while it is loaded, and
    describes the folders."""

    def __init__(
        self,
        state: FleetState,
        descriptions: ModelDescriptions,
        tiers: WarmTierManager | None = None,
        *,
        timeout_s: float,
        require_loadable: Callable[[str], None] | None = None,
        instances: Mapping[str, ServerInstance] | None = None,
    ) -> None:
        """Without `tiers` all models are on this machine. A fetch that takes longer than `timeout_s` goes on,
        but nobody waits for it any more.

        `require_loadable` is `models/ports.ModelRepository.require_loadable`, which reads files; None if
        servers have folders of their own. Those of `instances` (by server) that do describe and fetch their
        models themselves.
        """
        self._instances = {} if instances is None else instances  # it may still be empty: servers join later
        self._require_loadable = require_loadable
        self._state = state
        self._descriptions = descriptions
        self._tiers = tiers
        self._timeout_s = timeout_s
        self._turn = asyncio.Lock()
        """Serialises the reads: what an earlier one has found would take back what a later one has."""

    async def describe(self) -> None:
        """Read the models' folders, and bring the view of the fleet in line with them, a part of them at a time."""
        async with self._turn:
            described = await self._read()
            for number, _ in enumerate(self._state.specs.describing(described, self._tiers)):
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _read(self) -> dict[str, DescribedModel]:
        told = [instance.described() for instance in self._instances.values()]
        # Folders of this machine say nothing of servers that have their own and tell of them.
        is_told_all = bool(told) and None not in told
        described = {} if is_told_all else dict(await asyncio.to_thread(self._descriptions.read))
        if self._tiers is not None:
            # The configurations of cold models are read once they have been fetched.
            cold = set(self._tiers.names()) - described.keys()
            described |= {name: _named(name) for name in cold}
        for each in told:
            # Where its files are more is known of a model than where they have to be fetched.
            described |= {name: model for name, model in (each or {}).items() if model.fetch_s is None or name not in described}
        # Attached Tritons have folders of their own; what they list can be served as well.
        elsewhere = self._state.listed() - described.keys()
        described |= {name: _named(name) for name in elsewhere}
        return described

    def is_cold(self, model: str) -> bool:
        """Whether the model has to be fetched first."""
        return self._tiers is not None and self._tiers.tier_of(model) is Tier.COLD

    def expected_fetch_s(self, model: str) -> float:
        """Seconds until a fetch of the model has ended; 0 if none is needed."""
        return 0.0 if self._tiers is None else self._tiers.expected_fetch_s(model)

    @asynccontextmanager
    async def held_at(self, model: str, server: str) -> AsyncIterator[None]:
        """Context manager as `held_locally`, for a server that may have files of its own."""
        instance = self._instances.get(server)
        known = None if instance is None else instance.described()
        if instance is None or known is None:
            async with self.held_locally(model):
                yield
            return
        before = known.get(model)
        async with instance.held_locally(model):
            if (instance.described() or {}).get(model) != before:
                await self.describe()
            self._refuse_sharded(model)
            yield

    @asynccontextmanager
    async def held_locally(self, model: str) -> AsyncIterator[None]:
        """Context manager: within the block the model's files are here, stay here, and are described. They
        are fetched first, if need be.

        Raises as `WarmTierManager.ensure_warm`; ModelLoadFailed, ModelNotFound: no server could load it.
        """
        if self._tiers is None or model not in self._tiers.names():
            await self._check(model)
            yield
            return
        was_cold = self.is_cold(model)
        await self._tiers.ensure_warm(model, deadline_s=asyncio.get_running_loop().time() + self._timeout_s)
        with self._tiers.pinned(model):
            # Only now its size is known, by which it is placed.
            if was_cold:
                await self.describe()
            await self._check(model)
            yield

    def _refuse_sharded(self, model: str) -> None:
        """Raise ModelLoadFailed if the model is loaded nowhere; of a cold one that is not known before."""
        facts = self._state.fleet.models.get(model)
        if facts is not None and facts.spec.sharded:
            raise ModelLoadFailed(f"model '{model}' is sharded, so its parts are loaded in its place; ask again", is_transient=True)

    async def _check(self, model: str) -> None:
        self._refuse_sharded(model)
        if self._require_loadable is not None:
            await asyncio.to_thread(self._require_loadable, model)


@lru_cache(maxsize=20_000)
def _named(name: str) -> DescribedModel:
    """Describe a model of which only the name is known; there may be thousands, which are described every five seconds."""
    return DescribedModel(ModelSpec(name), file_bytes=0)
