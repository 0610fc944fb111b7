"""Shared evidence: adds up what all gateways have seen of a rollout.

Twice a second each process writes its own sums to the state Redis and reads the others'. So the gates judge all of the
traffic, and a new leader, or a gateway that restarts, goes on with what was found before. A unit (`domain/evidence`)
counts at the process that has claimed it first: a caller who always fails is one sample, however many gateways serve
it. Called by `rollout/rollouts`, which judges by one process's own evidence while the store is away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from control_plane.core.errors import StoreUnavailable
from control_plane.inference.domain.observation import Observation
from control_plane.objects.domain.rollout import Rollout
from control_plane.objects.mirror import ObjectMirror
from control_plane.rollout.domain.evidence import Evidence
from control_plane.rollout.domain.findings import Findings, Sums, added, later
from control_plane.rollout.ports import EvidenceBoard

_log = logging.getLogger(__name__)

INTERVAL_S = 0.5
FRESH_S = 1.5
"""Age from which what the others have found is no longer relied on: the store is away, or too slow."""
MAX_HELD = 5_000
"""Observations of a rollout between two exchanges; what comes beyond counts for this process's own evidence only."""
UNITS_PER_HALVING = 50_000
"""Units that all count; of those beyond only half do, beyond twice as many a quarter, and so on: Redis keeps each."""
_MAX_FOREIGN = 100_000
_AFTER_DEFECT_S = 5.0
_ALL = 2**32


@dataclass(slots=True)
class _Part:
    """This process's part of a rollout's evidence, with what it knows of the others'."""

    evidence: Evidence
    stage: int
    held: list[Observation] = field(default_factory=list)
    owned: set[int] = field(default_factory=set)
    foreign: set[int] = field(default_factory=set)
    """Units that others had claimed; forgotten when there are many, since the store knows."""
    below: int = _ALL
    others: dict[str, Sums] = field(default_factory=dict)
    exchanged_s: float | None = None

    def forget_units(self) -> None:
        """Give back the memory of a rollout that has ended."""
        self.held, self.owned, self.foreign = [], set(), set()
        self.evidence.forget_units()


class SharedEvidence:
    """Evidence of all gateways added up, as one process knows it."""

    def __init__(self, board: EvidenceBoard, known: ObjectMirror, *, process: str, now_s: Callable[[], float] = time.monotonic) -> None:
        """`process` is unique to this run of this process: after a restart it must be another name."""
        self._board = board
        self._known = known
        self._process = process
        self._now_s = now_s
        self._parts: dict[str, _Part] = {}
        self._is_away = False

    def add(self, rollout: Rollout, seen: Observation) -> None:
        """Keep an observation of a rollout that is under way for the next exchange."""
        held = self._part(rollout).held
        if len(held) < MAX_HELD:
            held.append(seen)

    def findings(self, rollout: Rollout) -> Findings | None:
        """What all processes say together; None while that is not known."""
        part = self._parts.get(rollout.id)
        if part is None or part.exchanged_s is None:
            return None
        if rollout.is_under_way and (self._is_away or self._now_s() - part.exchanged_s > FRESH_S):
            return None
        return added([*part.others.values(), part.evidence.sums(part.stage)], rollout)

    async def run(self) -> None:
        """Exchange evidence until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self.exchange()
            except Exception:  # a defect here must not end the gateway, which goes on with its own evidence
                self._is_away = True
                _log.exception("the evidence of rollouts is not added up for %g s", _AFTER_DEFECT_S)
                await asyncio.sleep(_AFTER_DEFECT_S)

    async def exchange(self) -> None:
        """Write what was seen here since the last time, and read what the others have seen."""
        kept = {rollout.id: rollout for rollout in self._known.rollouts.values()}
        self._parts = {each: part for each, part in self._parts.items() if each in kept}
        try:
            for rollout in kept.values():
                if rollout.is_under_way:
                    await self._exchange(rollout, self._part(rollout))
                elif rollout.id in self._parts:
                    self._parts[rollout.id].forget_units()  # its findings are shown until the route's next rollout
        except StoreUnavailable as exc:
            self._is_away = True
            _log.debug("the evidence of rollouts is not added up: %s", exc)  # debug: the mirror says so, once
        else:
            self._is_away = False

    async def close(self) -> None:
        """Close the board."""
        await self._board.close()

    def _part(self, rollout: Rollout) -> _Part:
        part = self._parts.get(rollout.id)
        if part is None:
            part = self._parts[rollout.id] = _Part(Evidence(rollout), rollout.stage)
        return part

    async def _exchange(self, rollout: Rollout, part: _Part) -> None:
        held, part.held = part.held, []
        await self._claim(rollout, part, held)
        for seen in held:
            if seen.digest in part.owned:
                part.evidence.add(seen)
        part.evidence.tick()
        if part.stage != rollout.stage:
            part.evidence.begin_step()  # after what was held, most of which is of the stage before
            part.stage = rollout.stage
        own = part.evidence.sums(part.stage)
        found = await self._board.exchange(rollout.id, self._process, own if own.samples or own.step_samples else None)
        for process, sums in found.items():
            if process != self._process:
                part.others[process] = later(part.others.get(process), sums)
        part.exchanged_s = self._now_s()

    async def _claim(self, rollout: Rollout, part: _Part, held: list[Observation]) -> None:
        """Find out which units count here. Those of a claim whose answer is lost count nowhere."""
        wanted = {seen.digest for seen in held if seen.digest >> 32 < part.below} - part.owned - part.foreign
        if not wanted:
            return
        fresh, claimed = await self._board.claim(rollout.id, wanted)
        part.owned |= fresh
        if len(part.foreign) > _MAX_FOREIGN:
            part.foreign.clear()
        part.foreign |= wanted - fresh
        part.below = _ALL >> (claimed // UNITS_PER_HALVING)
