"""Open charges: ended requests to models without a latency table, which are charged when Triton has counted
their compute time.

Triton reports compute time per model, of all requests together, so a process that knows all requests must
divide it: a worker hands its open charges to its parent. `metering/compute_costs` polls Triton and calls
`settle`.
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
"""Charges a tenant's use of a model with compute units: (tenant, model, units)."""

_ANSWERED = Ending.ANSWERED  # once: in Python 3.11 to look up a member of an enum takes as long as a call
_MAX_OPEN = 20_000
"""Most open sums by tenant, model and step. Requests for made-up names reach Triton too, and must not fill
memory."""
_POLLS_UNTIL_ESTIMATED = 2
"""Polls at which Triton has counted nothing for a model that has answered, after which its charges are
estimated: Triton has restarted, or answers from its own cache."""
_DROPPED_AFTER_S = 600.0
"""Time in which Triton has counted nothing for requests whose callers left, after which it must have dropped
them."""
_MAX_CARRY_S = 1.0
"""How long compute time that nobody asked for is carried over to the next polls: the gateway sees a request's
end a moment after its execution, and the parent hears of a worker's later still."""


@dataclass(frozen=True, slots=True)
class StatisticsPoll:
    """Result of one poll of Triton's statistics, by model."""

    computed: Mapping[str, Computed]
    """Compute time since the poll before."""
    mean_ms: Mapping[str, float]
    """Usual milliseconds of a row, to estimate what the statistics do not show."""
    exists: Container[str]
    """Models that Triton has."""
    old: Container[str] = ()
    """Models with statistics of a server polled for the first time: most of their compute time may be long
    past."""


@dataclass(slots=True)
class _Step:
    """State of one computing model (a plain model, or a step of an ensemble) between polls."""

    rest: Computed = NOTHING
    """Compute time of the last polls that no request was charged for."""
    seen: deque[tuple[float, Computed]] = field(default_factory=deque)
    """All compute time of the last polls, with the time of each."""
    late_rows: float = 0.0
    """Rows that are charged but not yet in Triton's statistics: it counts a row a moment after it has
    answered."""
    late_since_s: float = -inf
    polls_without_compute: int = 0
    """Polls in a row without any compute time to share."""
    uncovered_since_s: float = inf
    """Since when there are charges of callers who left and no compute time that could be theirs; inf if there
    are none."""


class ComputeCharges:
    """Ledger of the open charges of one process, or of a gateway with all its workers."""

    def __init__(self, charge: ChargeUnits, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._charge = charge
        self._now_s = now_s
        self._is_open = asyncio.Event()
        self.collect: Callable[[], Awaitable[None]] = _nothing
        """Makes worker processes send their open charges now, which arrive by `include`."""
        self._charges: dict[tuple[str, str, str], OpenCharge] = {}
        """(tenant, requested model, computing model) -> open charge."""
        self._steps: dict[str, _Step] = {}
        """Computing models with state to carry over to the next poll."""
        self._is_full = False

    def add(self, tenant: str, model: str, steps: Iterable[str], ending: Ending, rows: float, at_triton_ms: float, /) -> None:
        """Add an ended request that Triton has had; `steps` are the models that compute it."""
        for step in steps:
            charge = self._charges.get((tenant, model, step)) or self._begin(tenant, model, step)
            if ending is _ANSWERED:
                charge.answered_rows += rows
                charge.answered_ms += at_triton_ms
            elif ending is Ending.FAILED:
                charge.failed_rows += rows
                charge.failed_ms += at_triton_ms
            else:
                charge.left_rows += rows

    async def wait_until_open(self) -> None:
        """Return when there is an open charge."""
        await self._is_open.wait()

    def take(self) -> list[OpenCharge]:
        """Remove and return all open charges, to hand them to the process that settles them."""
        taken = list(self._charges.values())
        self._charges.clear()
        self._is_open.clear()
        return taken

    def include(self, charges: Iterable[OpenCharge]) -> None:
        """Add open charges of another process."""
        for charge in charges:
            known = self._charges.get((charge.tenant, charge.model, charge.step)) or self._begin(charge.tenant, charge.model, charge.step)
            known.include(charge)

    def settle(self, poll: StatisticsPoll, *, is_last: bool = False) -> None:
        """Divide the compute time since the last poll among the open charges; those not yet counted stay
        open.

        With `is_last` nothing stays open: what Triton has not counted is estimated.
        """
        by_step: dict[str, list[OpenCharge]] = {}
        for charge in self._charges.values():
            by_step.setdefault(charge.step, []).append(charge)
        for name in poll.computed.keys() | by_step.keys() | self._steps.keys():
            self._settle(name, by_step.get(name, []), poll, is_last=is_last)
        self._charges = {key: charge for key, charge in self._charges.items() if charge.is_open}
        if not self._charges:
            self._is_open.clear()

    def _settle(self, name: str, charges: list[OpenCharge], poll: StatisticsPoll, *, is_last: bool) -> None:
        # Removed, and put back below only if there is state to carry: models that are gone must not stay for
        # ever.
        step = self._steps.pop(name, None) or _Step()
        self._share(step, charges, poll.computed.get(name, NOTHING), is_old=name in poll.old)
        if is_last or step.polls_without_compute >= _POLLS_UNTIL_ESTIMATED:
            mean_ms = poll.mean_ms.get(name, 0.0)
            for charge in charges:
                self._pay(charge, estimate(charge, mean_ms) + (charge.left_rows * mean_ms if is_last else 0.0))
                charge.charge(1.0 if is_last else 0.0)
        # Triton does not have the model any more, or must have dropped what callers left: nothing will be counted for
        # these charges, which would stay open for ever.
        is_unknown = step.polls_without_compute >= _POLLS_UNTIL_ESTIMATED and name not in poll.exists
        if is_unknown or self._now_s() - step.uncovered_since_s > _DROPPED_AFTER_S:
            for charge in charges:
                charge.charge(1.0)
        if step.rest.ms or step.late_rows or any(charge.is_open for charge in charges):
            self._steps[name] = step

    def _share(self, step: _Step, charges: list[OpenCharge], new: Computed, *, is_old: bool) -> None:
        now_s = self._now_s()
        while step.seen and now_s - step.seen[0][0] > _MAX_CARRY_S:
            step.seen.popleft()
        computed = new + _at_most(step.rest, step.seen)
        if now_s - step.late_since_s > _MAX_CARRY_S:
            step.late_rows = 0.0
        shares = share_out(computed, charges, late_rows=step.late_rows)
        # A server's first statistics are sums since its start, of which most belongs to no charge here.
        if not is_old:
            step.seen.append((now_s, new))
        step.rest = _at_most(shares.rest, step.seen)
        step.uncovered_since_s = inf if shares.left_part or not charges else min(step.uncovered_since_s, now_s)
        step.polls_without_compute = 0 if computed.ms else step.polls_without_compute + 1
        if computed.ms:
            if shares.late_rows > step.late_rows:
                step.late_since_s = now_s
            step.late_rows = shares.late_rows
            for charge, units in zip(charges, shares.units, strict=True):
                self._pay(charge, units)
                charge.charge(shares.left_part)

    def _begin(self, tenant: str, model: str, step: str) -> OpenCharge:
        if len(self._charges) >= _MAX_OPEN:
            if not self._is_full:
                _log.error("more than %d tenants' charges wait for Triton's counts; further ones are not charged", _MAX_OPEN)
            self._is_full = True
            # Kept by nobody: what is added to it is not charged, as the log says.
            return OpenCharge(tenant, model, step)
        self._is_full = False
        self._is_open.set()
        charge = self._charges[tenant, model, step] = OpenCharge(tenant, model, step)
        return charge

    def _pay(self, charge: OpenCharge, units: float) -> None:
        if units > 0:
            self._charge(charge.tenant, charge.model, units)


def _at_most(rest: Computed, seen: Iterable[tuple[float, Computed]]) -> Computed:
    """Limit the carried rest to what was computed recently: older compute time is somebody else's, such as
    another gateway's.
    """
    recent = sum((computed for _, computed in seen), NOTHING)
    return Computed(min(rest.rows, recent.rows), min(rest.ms, recent.ms))


async def _nothing() -> None:
    """Default of `collect`: there are no worker processes."""
