"""Lists, loads and unloads models, and remembers which ones are wanted, so that a restarted Triton gets them back.

Called by the admin API, at start, and by the supervisor after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from control_plane.domain.errors import ControlPlaneError, InvalidRequest, ModelNotFound
from control_plane.domain.model import MODEL_NAME, Model, summarise
from control_plane.ports import ModelRepository, Upstream
from control_plane.services.servers import Servers

_log = logging.getLogger(__name__)

ALL_MODELS = "*"


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """A model that was wanted at start and could not be loaded."""

    name: str
    reason: str


class ModelService:
    """The wanted models of one Triton. `repository` is None when Triton is attached and keeps its own."""

    def __init__(self, *, servers: Servers, repository: ModelRepository | None, load: list[str], load_timeout_s: float) -> None:
        self._servers = servers
        self._repository = repository
        self._initial = load
        self._load_timeout_s = load_timeout_s
        self._desired: dict[str, None] | None = None

    async def list_models(self) -> list[Model]:
        """Every model of the repositories and of Triton's index, by name. Raises UpstreamUnavailable."""
        control = self._servers.pick().control
        index = await control.index()
        memory = await control.memory_bytes()
        names = {line.name for line in index} | set(self._known())
        return [summarise(name, index, memory.get(name)) for name in sorted(names)]

    async def get(self, name: str) -> Model:
        """One model. Raises ModelNotFound, UpstreamUnavailable."""
        for model in await self.list_models():
            if model.name == name:
                return model
        raise ModelNotFound(f"no model '{name}' in any repository; `tidegate models list` shows the ones there are")

    async def load(self, name: str) -> Model:
        """Load or reload a model and want it from now on.

        Raises:
            InvalidRequest: the name cannot be a model's. ModelNotFound: no repository has it.
            ModelLoadFailed, DeadlineExceeded, UpstreamUnavailable: as Triton answered; it is not wanted then.
        """
        _check_name(name)
        await self._load(self._servers.pick(), name)
        self._want(name)
        return await self.get(name)

    async def unload(self, name: str) -> Model:
        """Unload a model and want it no longer; requests in flight finish. Raises as `load`."""
        _check_name(name)
        await self.get(name)
        await self._servers.pick().control.unload(name, timeout_s=self._load_timeout_s)
        if self._desired is not None:
            self._desired.pop(name, None)
        return await self.get(name)

    async def restore(self, upstream: Upstream) -> list[LoadFailure]:
        """Load all wanted models into a Triton that has just started; what fails is reported and the rest is served."""
        if self._repository is not None:
            self._repository.place_all()
        if self._desired is None:
            self._desired = dict.fromkeys(await self._expand(upstream))
        wanted = list(self._desired)
        results = await asyncio.gather(*(self._load(upstream, name) for name in wanted), return_exceptions=True)
        return [failure for name, result in zip(wanted, results, strict=True) if (failure := _report(name, result))]

    async def _load(self, upstream: Upstream, name: str) -> None:
        if self._repository is not None:
            self._repository.place(name)
        await upstream.control.load(name, timeout_s=self._load_timeout_s)

    async def _expand(self, upstream: Upstream) -> list[str]:
        if ALL_MODELS not in self._initial:
            return self._initial
        return sorted({line.name for line in await upstream.control.index()} | set(self._known()))

    def _known(self) -> list[str]:
        return self._repository.names() if self._repository is not None else []

    def _want(self, name: str) -> None:
        if self._desired is None:
            self._desired = {}
        self._desired[name] = None


def _check_name(name: str) -> None:
    if not MODEL_NAME.fullmatch(name):
        raise InvalidRequest(f"{name!r} cannot be a model's name; letters, digits, '.', '_' and '-' can")


def _report(name: str, result: BaseException | None) -> LoadFailure | None:
    if result is None:
        _log.info("model ready", extra={"model": name})
        return None
    if not isinstance(result, ControlPlaneError):
        raise result
    _log.error("model could not be loaded: %s", result, extra={"model": name})
    return LoadFailure(name, str(result))
