"""Finds the models of one kind, such as those that embed texts, by their configurations.

Each capability that serves a kind has an instance (`embeddings/text_models`, `generation/generative_models`); `frontends/openai`
asks it for the list of models.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from control_plane.auth.access import Access
from control_plane.auth.domain.authorization import Need
from control_plane.core.errors import InvalidRequest, ModelNotFound, NotSupported, PermissionDenied
from control_plane.core.principal import Principal
from control_plane.core.scope import Right
from control_plane.inference.dispatch.dispatch import Dispatch
from control_plane.inference.model_configuration.model_configs import ModelConfigs
from control_plane.models.fingerprints import Fingerprints
from control_plane.sharding.domain.plan import ONLY_VERSION
from control_plane.triton.ports import Upstream

KindT = TypeVar("KindT")


class ModelsOfKind(Generic[KindT]):
    """Descriptions of models of one kind, by name and version."""

    def __init__(
        self,
        dispatch: Dispatch,
        fingerprints: Fingerprints,
        access: Access,
        read: Callable[[bytes | bytearray], KindT | None],
        *,
        refusal: str,
        may_be_sharded: bool = False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` describes a model by its configuration; None: it is of another kind, which callers are told with `refusal`.
        Sharded models are of this kind only if they `may_be_sharded`: no server has one to describe it."""
        self._dispatch = dispatch
        self._access = access
        self._read = read
        self._refusal = refusal
        self._may_be_sharded = may_be_sharded
        self._configs = ModelConfigs(dispatch, fingerprints, read, now_s=now_s)

    async def describe(self, name: str, version: str = "", *, timeout_s: float, server: Upstream | None = None) -> KindT:
        """The description of a model, from the cache or from Triton: that `server`, or one with the model.

        Raises:
            ModelNotFound: it is not loaded.
            InvalidRequest: it is of another kind.
            NotSupported: it is sharded, and of this kind none can be.
            UpstreamUnavailable, UpstreamFailed, DeadlineExceeded.
        """
        if told := self._told_config(name):
            if version not in ("", ONLY_VERSION):
                raise ModelNotFound(f"the model {name!r} has no version {version}")
            model = self._read(told.encode())
        else:
            model = await self._configs.get(name, version, timeout_s=timeout_s, server=server)
        if model is None:
            raise InvalidRequest(f"model {name!r} is {self._refusal}", field="model")
        return model

    async def usable(self, principal: Principal, *, timeout_s: float) -> list[str]:
        """The names that `principal` may use, sorted: of ready models of this kind, and of routes to them.

        Raises UpstreamUnavailable, UpstreamFailed, DeadlineExceeded.
        """
        ready = await self._dispatch.ready()
        targets = {name: (name, "") for name in ready} | {route.name: (route.model, route.version) for route in self._access.routes}
        allowed = [name for name in sorted(targets) if targets[name][0] in ready and self._may_use(principal, name)]
        return [name for name in allowed if await self._is_one(*targets[name], timeout_s)]

    def _told_config(self, name: str) -> str:
        """The configuration of a sharded model that may be of this kind; else empty."""
        catalogue = self._dispatch.catalogue
        return catalogue.told_config(name) if self._may_be_sharded and catalogue is not None else ""

    def _may_use(self, principal: Principal, name: str) -> bool:
        try:
            self._access.require(principal, Need(Right.INFER, name))
        except PermissionDenied:
            return False
        return True

    async def _is_one(self, name: str, version: str, timeout_s: float) -> bool:
        try:
            await self.describe(name, version, timeout_s=timeout_s)
        except (InvalidRequest, ModelNotFound, NotSupported):
            return False
        return True
