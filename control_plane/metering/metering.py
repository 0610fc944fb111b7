"""Takes bookkeeping off the request path: requests are summed up in memory, and the sums added to the usage store later.

`add` is called where a request ends and never waits. What it accepts the store counts once: sums leave as a batch with an
id, which is sent again under it until the store confirms it, and at a stop the store cannot take part in goes to disk
for the next process. A store that is away costs neither memory nor requests: sums go on growing. What a kill -9 loses
is what waits: half a second's requests while the store keeps up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from uuid import uuid4

from control_plane.core.backoff import RestartLimits, restart_delay_s
from control_plane.core.errors import StoreUnavailable
from control_plane.core.infer_call import Outcome
from control_plane.metering.domain.usage import COUNTED_AS, DAY_S, MOST, Usage, UsageBatch, UsageEvent, day_of, storable_key
from control_plane.metering.ports import RequestLog, UsageSpill, UsageStore

_log = logging.getLogger(__name__)

PERIOD_S = 0.5
BATCH_SUMS = 100
"""Making, writing and reading so many takes a millisecond or two each, in which nothing else runs."""
ADD_TIMEOUT_S = 30.0
"""A store that takes longer over a batch counts as away, and is sent the same batch again."""
_BACK_OFF = RestartLimits(first_delay_s=PERIOD_S, max_delay_s=10.0)


@dataclass(slots=True)
class _Tally:
    """A `Usage` that is still growing."""

    requests: int = 0
    failed: int = 0
    refused: int = 0
    rows: int = 0
    elements: int = 0
    compute_units: float = 0.0
    cache_hits: int = 0

    def usage(self) -> Usage:
        return Usage(self.requests, self.failed, self.refused, self.rows, self.elements, self.compute_units, self.cache_hits)


class Metering:
    """What the requests of one process used, on its way to a store."""

    def __init__(
        self,
        *,
        store: UsageStore,
        spill: UsageSpill,
        max_sums: int,
        log: RequestLog | None = None,
        new_id: Callable[[], str] = lambda: uuid4().hex,
        today_s: Callable[[], float] = time.time,
    ) -> None:
        """Takes up what earlier processes spilled as soon as `run` runs. `today_s` is in seconds since 1970."""
        self._store = store
        self._spill = spill
        self._max_sums = max_sums
        self._log = log
        self._new_id = new_id
        self._today_s = today_s
        self._day, self._day_began_s, self._day_ends_s = "", 0.0, 0.0
        self._tallies: dict[tuple[str, str, str], _Tally] = {}
        """By day, tenant and model."""
        self._unconfirmed: UsageBatch | None = None
        self._may_have_spilled = True
        self._failures = 0
        self.dropped = 0
        """Requests that were not metered, since too many sums waited or they could not be spilled."""

    @property
    def waiting(self) -> int:
        """Sums that the store has not confirmed."""
        return len(self._tallies) + (len(self._unconfirmed.sums) if self._unconfirmed else 0)

    @property
    def has_log(self) -> bool:
        """Whether `log` has any use for an event."""
        return self._log is not None

    def add(self, tenant: str, model: str, outcome: Outcome, rows: int, elements: int, compute_units: float, cache_hit: bool, /) -> None:
        """Count a request that ends now; a first one of its day, tenant and model is dropped while too many sums wait."""
        tally = self._tally(tenant, model)
        if tally is None:
            self.dropped += 1
            return
        counted_as = COUNTED_AS[outcome]
        setattr(tally, counted_as, getattr(tally, counted_as) + 1)
        tally.rows += rows if rows < MOST else MOST
        tally.elements += elements if elements < MOST else MOST
        tally.compute_units += compute_units
        if cache_hit:
            tally.cache_hits += 1

    def add_units(self, tenant: str, model: str, compute_units: float, /) -> None:
        """Charge what has been computed for requests that were counted when they ended."""
        tally = self._tally(tenant, model)
        if tally is not None:
            tally.compute_units += compute_units

    def add_hits(self, tenant: str, model: str, *, requests: int, rows: int, elements: int) -> None:
        """Count requests that were answered from the cache, with the rows and elements of all of them."""
        tally = self._tally(tenant, model)
        if tally is None:
            self.dropped += requests
            return
        tally.requests += requests
        tally.cache_hits += requests
        tally.rows += rows
        tally.elements += elements

    def log(self, event: UsageEvent) -> None:
        """A line in the request log, if there is one."""
        if self._log is not None:
            self._log.write(event)

    async def run(self) -> None:
        """Send until cancelled, twice a second, in order; while the store is away, less often and for ever."""
        while True:
            await asyncio.sleep(restart_delay_s(self._failures, limits=_BACK_OFF) if self._failures else PERIOD_S)
            try:
                await self._send()
            except (StoreUnavailable, TimeoutError) as exc:
                self._fail(f"the usage store is away, usage waits: {str(exc) or 'it did not answer'}")
            except Exception:
                # A defect of a store must not end the gateway, and a batch is not given up for it.
                _log.exception("usage could not be stored; it is tried again")
                self._failures += 1

    async def close(self, timeout_s: float) -> None:
        """Send what waits for `timeout_s` at most, and spill what is left then; nothing is accepted any more.

        `run` must have ended. Cancelling it spills at once.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._send()
        except (StoreUnavailable, TimeoutError) as exc:
            self._fail(f"the usage store is away at the end: {str(exc) or 'it did not answer in time'}")
        except Exception:
            _log.exception("usage could not be stored at the end")
        finally:
            # Without a wait, so that not even a cancellation comes between.
            self._spill_rest()
            self._max_sums = 0

    def _tally(self, tenant: str, model: str) -> _Tally | None:
        """Today's; None where there is no room for it."""
        now_s = self._today_s()
        if not self._day_began_s <= now_s < self._day_ends_s:
            self._turn_day(now_s)
        key = (self._day, tenant, model)
        tally = self._tallies.get(key)
        if tally is None and len(self._tallies) < self._max_sums:
            tally = self._tallies[key] = _Tally()
        return tally

    def _turn_day(self, now_s: float) -> None:
        """Also when the clock was set back."""
        self._day, self._day_began_s = day_of(now_s), now_s // DAY_S * DAY_S
        self._day_ends_s = self._day_began_s + DAY_S

    async def _send(self) -> None:
        """First what earlier processes left, so that order is kept over them too; then what waits now, but not what comes meanwhile."""
        if self._may_have_spilled:
            for spilled in self._spill.batches():
                await self._add(spilled)
                self._spill.remove(spilled)
            self._may_have_spilled = False
        left = self.waiting
        while left > 0 and (batch := self._next_batch()) is not None:
            await self._add(batch)
            self._unconfirmed = None
            left -= len(batch.sums)

    async def _add(self, batch: UsageBatch) -> None:
        async with asyncio.timeout(ADD_TIMEOUT_S):
            await self._store.add(batch)
        if self._failures:
            _log.info("the usage store takes usage again")
        self._failures = 0

    def _next_batch(self) -> UsageBatch | None:
        """The one that has not been confirmed, unchanged, else the oldest of what waits."""
        if self._unconfirmed is None and self._tallies:
            oldest = list(islice(self._tallies, BATCH_SUMS))
            sums = tuple((storable_key(*key), self._tallies.pop(key).usage()) for key in oldest)
            self._unconfirmed = UsageBatch(self._new_id(), sums)
        return self._unconfirmed

    def _spill_rest(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._unconfirmed = None
            try:
                self._spill.write(batch)
            except StoreUnavailable as exc:
                self.dropped += batch.requests
                _log.error("usage of %d requests is lost: %s", batch.requests, exc)

    def _fail(self, message: str) -> None:
        if not self._failures:
            _log.warning("%s", message)
        self._failures += 1
