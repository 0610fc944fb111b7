"""Watchdog of the stubs of an embedded Triton's loaded models: notices within half a second that one has died.

Triton (24.10) does not notice before a request meets the dead process, goes on listing the model as READY, and
never starts another one. It does not wait for such a process either, which stays a zombie for as long as its
model is loaded, while the stubs of a model that is unloaded are gone at once. So a zombie that stays one is a
stub that has died. Stubs of a load under way are `load_watch`'s.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from control_plane.triton.copy_silence import HUNG
from control_plane.triton.embedded.watchdogs.load_watch import LoadWatch
from control_plane.triton.embedded.watchdogs.stubs import Stub, Stubs

LOOK_EVERY_S = 0.2
"""Time between two looks at the known stubs, of which each costs one read of a small file."""
_SEARCH_EVERY_S = 5.0
"""Time between two searches for stubs beside those after each load: models' code may have models loaded."""

StubDied = Callable[[str, str], None]
"""Called with the model and how its stub ended: `was killed by SIGKILL`."""


@dataclass(slots=True)
class StubWatch:
    """Watchdog of the stubs of one Triton process, once their models are loaded."""

    stubs: Stubs
    loads: LoadWatch
    _known: dict[int, Stub] = field(default_factory=dict)
    _ended: dict[int, str] = field(default_factory=dict)
    """Known stubs that were found to have ended at the last look."""
    _told: set[int] = field(default_factory=set)
    """Stubs whose death has been told."""
    _why: dict[int, str] = field(default_factory=dict)
    """Stubs that were killed here, and why."""
    _searched_s: float = float("-inf")
    _loads_seen: int = -1

    async def look(self) -> list[tuple[Stub, str]]:
        """Look once; return the stubs that have died since, each with how."""
        if self._loads_seen != self.loads.ended or time.monotonic() - self._searched_s > _SEARCH_EVERY_S:
            self._loads_seen, self._searched_s = self.loads.ended, time.monotonic()
            started, self.loads.started = self.loads.started, {}
            seen = await asyncio.to_thread(self.stubs.observe)
            living = seen.living
            found = started | {pid: stub for pid, stub in living.items() if not self.loads.is_starting(stub)}
            # Those that ended since the last search stay known until it is clear how.
            self._known = {pid: stub for pid, stub in self._known.items() if self.stubs.end_of(stub) is not None} | found
            self.loads.served |= {stub.region for stub in self._known.values()}
            if seen.abandoned:  # else it is not known which regions there still are
                self.loads.served &= seen.abandoned | {stub.region for stub in living.values()}
            self._told &= self._known.keys() | living.keys()
        before = self._ended
        self._ended = {pid: how for pid, stub in self._known.items() if (how := self.stubs.end_of(stub)) is not None}
        # Seen twice: Triton waits for one that it has ended itself, but not in the same moment.
        dead = [pid for pid in self._ended.keys() & before.keys() - self._told if not self.loads.is_starting(self._known[pid])]
        self._told.update(dead)
        return [(self._known[pid], self._why.pop(pid, self._ended[pid])) for pid in dead]

    async def of(self, models: Collection[str]) -> list[Stub]:
        """Return the living stubs of these models."""
        living = (await asyncio.to_thread(self.stubs.observe)).living
        return [stub for stub in living.values() if stub.model in models]

    def kill(self, stubs: Iterable[Stub]) -> None:
        """Kill these stubs, which hang; their deaths are told."""
        for stub in stubs:
            self._known[stub.pid], self._why[stub.pid] = stub, HUNG
            self.stubs.kill(stub)

    def end(self, stubs: Iterable[Stub]) -> None:
        """Kill those of these stubs that still run; their deaths are not told."""
        for stub in stubs:
            self._told.add(stub.pid)
            self.stubs.kill(stub)
