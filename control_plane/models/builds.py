"""Background builds of models: builds what is not up to date while requests are served, and reloads models
that were built.

A first start serves what can be served at once: a reference variant that was verified elsewhere and not
measured here. The rest is built in the background. A variant that may be chosen is put into service by an
ordinary load, which requests do not notice. Run by `app/`.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import Protocol

from control_plane.core.errors import ControlPlaneError
from control_plane.core.model import Model
from control_plane.models.domain.model_build import BuildEvent, BuildEventKind
from control_plane.models.ports import ModelBuilder

_log = logging.getLogger(__name__)


class BuiltModels(Protocol):
    """Service that loads what was built: `models/model_service`, or `fleet/administration`."""

    async def get(self, name: str) -> Model: ...

    async def reload_built(self, built: str) -> None: ...


class ModelBuilds:
    """Background job that builds models once, with its state for whoever lists models."""

    def __init__(self, builder: ModelBuilder, models: BuiltModels) -> None:
        self._builder = builder
        self._models = models
        self._current: BuildEvent | None = None
        self._step = ""
        self._failures: dict[str, dict[str, str]] = {}
        """Reasons by model and variant."""

    def state_of(self, model: str) -> str:
        """Return which variant of a model is being built and which could not be; empty if there is nothing to
        say.
        """
        said = [f"building {self._current.variant or 'it'}: {self._step}"] if self._current and self._current.model == model else []
        return "; ".join([*said, *self._failures.get(model, {}).values()])

    async def run(self) -> None:
        """Build what is not up to date, once; a cancellation ends the build."""
        try:
            async with aclosing(self._builder.build()) as events:
                async for event in events:
                    await self._take(event)
        except Exception:  # the root of a task: the gateway goes on serving without the builds
            _log.exception("models are not built any further")
        finally:
            self._current = None

    async def _take(self, event: BuildEvent) -> None:
        """Record an event of the build, and reload the model if a variant was built."""
        match event.kind:
            case BuildEventKind.BEGUN:
                self._current, self._step = event, event.text
                _log.info("building %s in the background: %s", event.label, event.text, extra={"model": event.model})
            case BuildEventKind.STEP:
                self._step = event.text
            case BuildEventKind.SKIPPED:
                _log.info("%s is not built: %s", event.label, event.text, extra={"model": event.model})
            case BuildEventKind.FAILED:
                self._current = None
                self._fail(event)
            case BuildEventKind.BUILT:
                self._current = None
                _log.info("built %s", event.label, extra={"model": event.model})
                await self._serve(event)

    def _fail(self, event: BuildEvent) -> None:
        said = f"{event.variant or 'it'} could not be built: {event.text}"
        self._failures.setdefault(event.model, {})[event.variant] = said
        _log.warning("%s could not be built: %s", event.label or "what is not up to date", event.text, extra={"model": event.model})

    async def _serve(self, event: BuildEvent) -> None:
        if event.is_auto_eligible or await self._is_meant(event):
            await self._models.reload_built(event.model)

    async def _is_meant(self, event: BuildEvent) -> bool:
        """Whether the variant is the one that is served now, or the model is not served, perhaps since this
        variant was missing.
        """
        try:
            served = (await self._models.get(event.model)).variant
        except ControlPlaneError:
            return True
        return served is None or served.name == event.variant
