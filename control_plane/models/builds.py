"""Has models built in the background, and what was built served.

A first start serves what can be served at once: a reference that was verified elsewhere, not measured here. Here the rest is built
while requests are answered, and each variant that may be chosen is taken up by an ordinary load, which a request does not notice.
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
    """`models/model_service`, or `fleet/administration`."""

    async def get(self, name: str) -> Model: ...

    async def load_anew(self, built: str) -> None: ...


class ModelBuilds:
    """The builds of one gateway; what they do is known as long as it matters."""

    def __init__(self, builder: ModelBuilder, models: BuiltModels) -> None:
        self._builder = builder
        self._models = models
        self._current: BuildEvent | None = None
        self._step = ""
        self._failures: dict[str, dict[str, str]] = {}
        """By model and variant."""

    def state_of(self, model: str) -> str:
        """What is being built of it, and what could not be; empty: nothing is to be said."""
        said = [f"building {self._current.variant or 'it'}: {self._step}"] if self._current and self._current.model == model else []
        return "; ".join([*said, *self._failures.get(model, {}).values()])

    async def run(self) -> None:
        """Build what is not up to date, once; cancelling it ends the build."""
        try:
            async with aclosing(self._builder.build()) as events:
                async for event in events:
                    await self._take(event)
        except Exception:  # the root of a task: what is served goes on without what was to be built
            _log.exception("models are not built any further")
        finally:
            self._current = None

    async def _take(self, event: BuildEvent) -> None:
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
        if event.may_be_chosen or await self._is_meant(event):
            await self._models.load_anew(event.model)

    async def _is_meant(self, event: BuildEvent) -> bool:
        """Whether it is the very variant that is served, or one that a load may have failed for the want of."""
        try:
            served = (await self._models.get(event.model)).variant
        except ControlPlaneError:
            return True
        return served is None or served.name == event.variant
