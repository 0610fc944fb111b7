"""Model service over models a, b and c."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from control_plane.core.errors import ControlPlaneError
from control_plane.models.model_service import ModelService
from control_plane.triton.servers import Servers
from tests.aio import changing, run
from tests.fakes import FakeRepository, FakeUpstream

T = TypeVar("T")
TIMEOUT_S = 77.0


class Bench:
    """Model service over models a, b and c; attached if `has_repository` is False."""

    def __init__(self, *load: str, has_repository: bool = True, restores: bool = True, tiers: Any = None, watch: Any = None) -> None:
        self.upstream, self.servers = FakeUpstream(), Servers()
        self.servers.up(self.upstream)
        self.repository = FakeRepository(models=["a", "b", "c"])
        self.service = ModelService(
            servers=self.servers,
            repository=self.repository if has_repository else None,
            load=list(load),
            load_timeout_s=TIMEOUT_S,
            restores=restores,
            tiers=tiers,
            watch=watch,
        )

    @property
    def control(self):  # type: ignore[no-untyped-def]
        return self.upstream.control

    def restart(self) -> list[str]:
        """Restore into a new Triton with nothing loaded, and return what was loaded into it."""
        self.upstream = FakeUpstream()
        self.servers.up(self.upstream)
        run(self.service.restore(self.upstream))
        return self.upstream.control.loads

    def does(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call while the service runs, as the running gateway would."""

        async def main() -> T:
            async with changing(self.service):
                return await call

        return run(main())

    def fails(self, call: Coroutine[Any, Any, object], error: type[ControlPlaneError]) -> str:
        with pytest.raises(error) as caught:
            self.does(call)
        return str(caught.value)


class Warm:
    """Fake `ModelTiers`, as far as loads need it: every model is warm, and pins are recorded."""

    def __init__(self) -> None:
        self.pinned_now: list[str] = []

    def names(self) -> list[str]:
        return ["a", "b"]

    async def ensure_warm(self, model: str, *, deadline_s: float) -> None: ...

    @contextmanager
    def pinned(self, model: str) -> Iterator[None]:
        self.pinned_now.append(model)
        try:
            yield
        finally:
            self.pinned_now.remove(model)
