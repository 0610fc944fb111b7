from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TypeVar

from control_plane.core.errors import ControlPlaneError
from control_plane.core.model import ModelOverride
from control_plane.workers.messages import FromWorker, ToWorker
from control_plane.workers.messages.from_workers import FingerprintsAcknowledged
from control_plane.workers.messages.to_workers import FingerprintsChanged

MessageT = TypeVar("MessageT")


@dataclass
class FakeWorker:
    """`workers/ports.WorkerProcess` whose messages and end the test decides. It acknowledges fingerprints
    while it `takes_note`."""

    number: int
    told: list[ToWorker] = field(default_factory=list)
    takes_note: bool = True
    is_killed: bool = False
    accepts: bool = True
    _says: asyncio.Queue[FromWorker | None] = field(default_factory=asyncio.Queue)

    def send(self, message: ToWorker) -> None:
        self.told.append(message)
        if self.takes_note and isinstance(message, FingerprintsChanged):
            self.say(FingerprintsAcknowledged(message.number))

    async def receive(self) -> FromWorker | None:
        return await self._says.get()

    async def wait(self) -> str:
        return "it was killed by signal 9" if self.is_killed else "it ended"

    def stop_accepting(self) -> None:
        self.accepts = False

    def kill(self) -> None:
        self.is_killed = True
        self.end()

    def say(self, message: FromWorker) -> None:
        self._says.put_nowait(message)

    def end(self) -> None:
        self._says.put_nowait(None)

    def messages_of(self, kind: type[MessageT]) -> list[MessageT]:
        return [message for message in self.told if isinstance(message, kind)]


@dataclass
class FakeWorkers:
    """`workers/ports.WorkerLauncher`; starting a worker raises `failure`, if there is one."""

    started: list[FakeWorker] = field(default_factory=list)
    take_note: bool = True
    failure: ControlPlaneError | None = None

    async def start(self, number: int) -> FakeWorker:
        if self.failure is not None:
            raise self.failure
        self.started.append(FakeWorker(number, takes_note=self.take_note))
        return self.started[-1]


@dataclass
class FakeModels:
    """`models/ports.ModelAdministration`; `failures` are raised by model. While it `is_stuck` no call comes
    to an end."""

    asked: list[tuple[object, ...]] = field(default_factory=list)
    failures: dict[str, Exception] = field(default_factory=dict)
    is_stuck: bool = False

    async def load(self, name: str, override: ModelOverride | None = None) -> None:
        await self._ask("load", name, override)

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        await self._ask("unload", name, unload_dependents)

    async def _ask(self, what: str, name: str, how: object) -> None:
        self.asked.append((what, name, how))
        if name in self.failures:
            raise self.failures[name]
        if self.is_stuck:
            await asyncio.get_running_loop().create_future()
