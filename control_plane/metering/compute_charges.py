"""The charges that wait for Triton's counts: of requests to models without a latency table, once they have ended.

A worker hands them to its parent, since only who knows of all requests can tell whose work it was that Triton counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from control_plane.metering.domain.compute_shares import estimate, share_out
from control_plane.triton.compute_time import NOTHING, Computed, Ending, OpenCharge

_log = logging.getLogger(__name__)

ChargeUnits = Callable[[str, str, float], None]
"""Of a tenant and a model, so many compute units."""

_MOST_OPEN = 20_000
"""Sums by tenant, model and step: names that callers make up are asked of Triton, too, and must not fill memory."""
_LOOKS_UNTIL_ESTIMATED = 2
"""At which Triton has counted nothing of a model that has answered: it has been restarted, or keeps answers itself."""
_DROPPED_AFTER_S = 600.0
"""In which Triton has counted nothing of those whose callers have left: it has dropped them."""
_CARRIED_S = 1.0
"""That what was computed for nobody yet may be somebody's: an end is seen a moment after the execution, and a worker's later still."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at Triton's counts has found, by model."""

    computed: Mapping[str, Computed]
    """Since the last one."""
    mean_ms: Mapping[str, float]
    """Of a row, for what the counts do not tell."""
    exists: Container[str]
    """The models that Triton has."""
    old: Container[str] = ()
    """Models with counts of a server that was seen for the first time: most of them may be of long ago."""


@dataclass(slots=True)
class _Step:
    """One model that computes."""

    rest: Computed = NOTHING
    """What was computed for nobody yet, at the last looks."""
    seen: deque[tuple[float, Computed]] = field(default_factory=deque)
    """When and what was computed at all then."""
    late_rows: float = 0.0
    """Charged already, but not yet counted: Triton counts a row a moment after it has answered."""
    late_since_s: float = -inf
    looks_without: int = 0
    """The latest, at which there was nothing to share."""
    uncovered_since_s: float = inf
    """Whose callers have left, and of whom nothing has been counted since."""


class ComputeCharges:
    """The open charges of one process, or of a gateway with all its workers."""

    def __init__(self, charge: ChargeUnits, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._charge = charge
        self._now_s = now_s
        self._is_open = asyncio.Event()
        self.collect: Callable[[], Awaitable[None]] = _nothing
        """Has other processes tell theirs, by `include`."""
        self._charges: dict[tuple[str, str, str], OpenCharge] = {}
        """By tenant, the model that was asked for, and the one that computes."""
        self._steps: dict[str, _Step] = {}
        """Those that something is known of beside the counts."""
        self._is_full = False

    def add(self, tenant: str, model: str, steps: Iterable[str], ending: Ending, rows: float, at_triton_ms: float, /) -> None:
        """A request that has been at Triton and has ended, with the models that compute it."""
        for step in steps:
            charge = self._charges.get((tenant, model, step)) or self._begin(tenant, model, step)
            if ending is Ending.ANSWERED:
                charge.answered_rows += rows
                charge.answered_ms += at_triton_ms
            elif ending is Ending.FAILED:
                charge.failed_rows += rows
                charge.failed_ms += at_triton_ms
            else:
                charge.left_rows += rows

    async def wait_until_open(self) -> None:
        """Return when there is something to settle."""
        await self._is_open.wait()

    def take(self) -> list[OpenCharge]:
        """All of them, for who settles them: `include` there."""
        taken = list(self._charges.values())
        self._charges.clear()
        self._is_open.clear()
        return taken

    def include(self, charges: Iterable[OpenCharge]) -> None:
        """Those of another process."""
        for charge in charges:
            known = self._charges.get((charge.tenant, charge.model, charge.step)) or self._begin(charge.tenant, charge.model, charge.step)
            known.include(charge)

    def settle(self, look: Look, *, is_last: bool = False) -> None:
        """Charge what Triton has counted since the last look; whom it has counted nothing for yet stays open.

        With `is_last` nothing stays open.
        """
        by_step: dict[str, list[OpenCharge]] = {}
        for charge in self._charges.values():
            by_step.setdefault(charge.step, []).append(charge)
        for name in look.computed.keys() | by_step.keys() | self._steps.keys():
            self._settle(name, by_step.get(name, []), look, is_last=is_last)
        self._charges = {key: charge for key, charge in self._charges.items() if charge.is_open}
        if not self._charges:
            self._is_open.clear()

    def _settle(self, name: str, charges: list[OpenCharge], look: Look, *, is_last: bool) -> None:
        step = self._steps.pop(name, None) or _Step()
        self._share(step, charges, look.computed.get(name, NOTHING), is_old=name in look.old)
        if is_last or step.looks_without >= _LOOKS_UNTIL_ESTIMATED:
            mean_ms = look.mean_ms.get(name, 0.0)
            for charge in charges:
                self._pay(charge, estimate(charge, mean_ms) + (charge.left_rows * mean_ms if is_last else 0.0))
                charge.settle(1.0 if is_last else 0.0)
        is_unknown = step.looks_without >= _LOOKS_UNTIL_ESTIMATED and name not in look.exists
        if is_unknown or self._now_s() - step.uncovered_since_s > _DROPPED_AFTER_S:
            for charge in charges:
                charge.settle(1.0)
        if step.rest.ms or step.late_rows or any(charge.is_open for charge in charges):
            self._steps[name] = step

    def _share(self, step: _Step, charges: list[OpenCharge], new: Computed, *, is_old: bool) -> None:
        now_s = self._now_s()
        while step.seen and now_s - step.seen[0][0] > _CARRIED_S:
            step.seen.popleft()
        computed = new + _at_most(step.rest, step.seen)
        if now_s - step.late_since_s > _CARRIED_S:
            step.late_rows = 0.0
        shares = share_out(computed, charges, late_rows=step.late_rows)
        if not is_old:
            step.seen.append((now_s, new))
        step.rest = _at_most(shares.rest, step.seen)
        step.uncovered_since_s = inf if shares.left_part or not charges else min(step.uncovered_since_s, now_s)
        step.looks_without = 0 if computed.ms else step.looks_without + 1
        if computed.ms:
            if shares.late_rows > step.late_rows:
                step.late_since_s = now_s
            step.late_rows = shares.late_rows
            for charge, units in zip(charges, shares.units, strict=True):
                self._pay(charge, units)
                charge.settle(shares.left_part)

    def _begin(self, tenant: str, model: str, step: str) -> OpenCharge:
        if len(self._charges) >= _MOST_OPEN:
            if not self._is_full:
                _log.error("more than %d tenants' charges wait for Triton's counts; further ones are not charged", _MOST_OPEN)
            self._is_full = True
            return OpenCharge(tenant, model, step)
        self._is_full = False
        self._is_open.set()
        charge = self._charges[tenant, model, step] = OpenCharge(tenant, model, step)
        return charge

    def _pay(self, charge: OpenCharge, units: float) -> None:
        if units > 0:
            self._charge(charge.tenant, charge.model, units)


def _at_most(rest: Computed, seen: Iterable[tuple[float, Computed]]) -> Computed:
    """What is older stays nobody's."""
    recent = sum((computed for _, computed in seen), NOTHING)
    return Computed(min(rest.rows, recent.rows), min(rest.ms, recent.ms))


async def _nothing() -> None:
    """There are no other processes."""
