"""Models a and b, an ensemble e of a, and an ensemble ee of e and b, and what is known of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from control_plane.core.errors import ControlPlaneError
from control_plane.core.fingerprint import LoadedConfig
from control_plane.core.model import ModelOverride, ModelState
from control_plane.models.loaded_contents import LoadedContents
from control_plane.models.model_service import ModelService
from control_plane.triton.servers import Servers
from tests.aio import changing, run
from tests.fakes import FakeBoard, FakeReading, FakeRepository, FakeUpstream

STEPS = {"e": ["a"], "ee": ["e", "b"]}
ALL = {"a", "b", "e", "ee"}
FILES = ModelOverride(config="{}", files={"file:1/model.py": b"x"})


class Bench:
    """Model service over these models, all of them loaded unless `load` says otherwise."""

    def __init__(self, load: list[str] | None = None) -> None:
        self.reading = FakeReading(files=dict.fromkeys(ALL, "first"), steps=STEPS)
        self.board, self.servers = FakeBoard(), Servers()
        self.contents = LoadedContents(self.reading, self.board)
        self.service = ModelService(
            servers=self.servers,
            repository=FakeRepository(models=sorted(ALL)),
            load=["ee"] if load is None else load,
            load_timeout_s=10,
            contents=self.contents,
        )
        self.start_triton()

    def start_triton(self) -> None:
        self.upstream = FakeUpstream()
        self.control = self.upstream.control
        self.control.configs = {name: LoadedConfig(b"", steps=frozenset(steps), response_cache=True) for name, steps in STEPS.items()}
        self.control.on_load = self.load_steps

    def load_steps(self, name: str) -> None:
        self.control.states |= dict.fromkeys(self.reading.ensemble_closure(name, None), ModelState.READY)

    @property
    def known(self) -> set[str]:
        return set(self.board.known)

    async def begin(self) -> None:
        self.servers.up(self.upstream)
        await self.service.restore(self.upstream)

    def does(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run `main` as the running gateway would, after its start."""

        async def main() -> None:
            await self.begin()
            async with changing(self.service):
                await work()

        run(main())

    async def load_new(self, name: str) -> None:
        async with self.contents.loading(self.upstream, name, None):
            await self.control.load(name, timeout_s=1)

    async def fails(self, call: Coroutine[Any, Any, object]) -> None:
        with pytest.raises(ControlPlaneError):
            await call
