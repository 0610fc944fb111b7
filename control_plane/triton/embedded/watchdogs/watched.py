"""Watches over whichever Triton of this machine runs now: its loads, and the stubs of its loaded models.

What `triton/embedded/process` and `triton/adopted/launcher` have in common: `models/ports.LoadWatch` and
`models/ports.ModelStubs` of the Triton that was started last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from control_plane.triton.embedded.watchdogs.load_watch import LoadWatch
from control_plane.triton.embedded.watchdogs.stub_watch import LOOK_EVERY_S, StubDied, StubWatch
from control_plane.triton.embedded.watchdogs.stubs import Stub


@dataclass(frozen=True, slots=True)
class Watches:
    """The two watchdogs of one Triton process."""

    loads: LoadWatch
    stubs: StubWatch


class WatchedTriton:
    """Watchdog of the Triton that runs now; without `watches` nothing of its processes is seen."""

    def __init__(self) -> None:
        self.watches: Watches | None = None

    async def carry_out(self, models: Sequence[str], load: Callable[[float], Awaitable[None]], *, timeout_s: float) -> None:
        """Carry out a load into the Triton that was started last, as
        `models/ports.LoadWatch.carry_out` says.
        """
        await (load(timeout_s) if self.watches is None else self.watches.loads.carry_out(models, load, timeout_s=timeout_s))

    async def watch_stubs(self, died: StubDied) -> None:
        """Watch the stubs of whichever Triton runs until cancelled; call `died` for each that dies once its
        model is loaded.
        """
        while True:
            if (watches := self.watches) is not None:
                for stub, how in await watches.stubs.look():
                    died(stub.model, how)
            await asyncio.sleep(LOOK_EVERY_S)

    async def stubs_of(self, models: Collection[str]) -> list[Stub]:
        """Return the living stubs of these models, for `end_stubs`."""
        return [] if self.watches is None else await self.watches.stubs.of(models)

    def end_stubs(self, stubs: Sequence[Stub]) -> None:
        """Kill those of these stubs that still run, as what is left of a copy that was replaced."""
        if self.watches is not None:
            self.watches.stubs.end(stubs)

    def kill_stubs(self, stubs: Sequence[Stub]) -> None:
        """Kill these stubs, which hang; their deaths are told by `watch_stubs`."""
        if self.watches is not None:
            self.watches.stubs.kill(stubs)
