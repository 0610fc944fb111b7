from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from control_plane.core.errors import ControlPlaneError
from control_plane.tuning.domain.candidates import Candidate, Level


@dataclass
class FakeTuningServers:
    """`tuning/ports.TuningServers` whose addresses are the candidates' labels; starting and ending take
    `start_s` each."""

    start_s: float = 1.0
    failures: dict[Candidate, ControlPlaneError] = field(default_factory=dict)
    hanging: set[Candidate] = field(default_factory=set)
    running: list[str] = field(default_factory=list)
    started: list[Candidate] = field(default_factory=list)
    most_at_a_time: int = 0

    @asynccontextmanager
    async def serve(self, candidate: Candidate) -> AsyncIterator[str]:
        await asyncio.sleep(1e9 if candidate in self.hanging else self.start_s)
        if candidate in self.failures:
            raise self.failures[candidate]
        self.started.append(candidate)
        self.running.append(candidate.label)
        self.most_at_a_time = max(self.most_at_a_time, len(self.running))
        try:
            yield candidate.label
        finally:
            self.running.remove(candidate.label)


@dataclass
class FakeLoad:
    """`tuning/ports.LoadGenerator` that returns what `measured` says after `duration_s`; `calls` has the
    address and concurrency of each run."""

    measured: Callable[[str, int], Level]
    calls: list[tuple[str, int]] = field(default_factory=list)
    failures: dict[int, ControlPlaneError] = field(default_factory=dict)
    """Errors to raise, by the number of the call (from 0)."""

    async def measure(self, address: str, *, concurrency: int, duration_s: float) -> Level:
        self.calls.append((address, concurrency))
        await asyncio.sleep(duration_s)
        if len(self.calls) - 1 in self.failures:
            raise self.failures[len(self.calls) - 1]
        return self.measured(address, concurrency)
