"""Metering off the request path: requests are summed in memory, and batches of sums are written to the usage
store later.

`add` is called when a request ends, and never waits. The store counts each sum exactly once: a batch has an
id and is sent again under that id until the store confirms it. If the store is away at a stop, batches go to
disk for the next process. While it is away, neither memory nor requests suffer: existing sums just grow.
`kill -9` loses what waits, which is half a second's requests while the store keeps up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from uuid import uuid4

from control_plane.core.algorithms.backoff import RestartLimits, restart_delay_s
from control_plane.core.errors import StoreUnavailable
from control_plane.core.infer_call import Outcome
from control_plane.metering.domain.tenant_units import TenantUnits
from control_plane.metering.domain.usage import COUNTED_AS, DAY_S, MOST, Usage, UsageBatch, UsageEvent, day_of, make_storable_key
from control_plane.metering.ports import RequestLog, UsageSpill, UsageStore

_log = logging.getLogger(__name__)

PERIOD_S = 0.5
BATCH_SUMS = 100
"""Sums per batch. Encoding, writing and decoding this many takes a millisecond or two each, during which
nothing else runs."""
ADD_TIMEOUT_S = 30.0
"""A store that takes longer over a batch counts as away, and gets the same batch again."""
_ANSWERED = Outcome.ANSWERED  # once: in Python 3.11 to look up a member of an enum takes as long as a call
_BACK_OFF = RestartLimits(first_delay_s=PERIOD_S, max_delay_s=10.0)


@dataclass(slots=True)
class _Tally:
    """Mutable sums of one day, tenant and model; `Usage` is the immutable value that is stored."""

    requests: int = 0
    failed: int = 0
    refused: int = 0
    rows: int = 0
    elements: int = 0
    compute_units: float = 0.0
    cache_hits: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def usage(self) -> Usage:
        sums = (self.requests, self.failed, self.refused, self.rows, self.elements, self.compute_units, self.cache_hits)
        return Usage(*sums, self.input_tokens, self.output_tokens)


class Metering:
    """Write-behind buffer of usage sums, from the requests of one process to the usage store."""

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
        """`run` first sends what earlier processes left in `spill`. `today_s` is a clock in seconds since
        1970.
        """
        self._store = store
        self._spill = spill
        self._max_sums = max_sums
        self._logs = [] if log is None else [log]
        self.has_log = bool(self._logs)
        """Whether there is a log of requests; if not, callers need not make events. Each request looks, so it is no property."""
        self._logged = 0
        self._new_id = new_id
        self._today_s = today_s
        self._day, self._day_began_s, self._day_ends_s = "", 0.0, 0.0
        self._tallies: dict[tuple[str, str, str], _Tally] = {}
        """(day, tenant, model) -> sums that wait, the oldest first."""
        self._units = TenantUnits()
        """Units of sums that wait no more, and of jobs."""
        self._unconfirmed_batch: UsageBatch | None = None
        self._spill_may_hold_batches = True
        self._failures = 0
        self._store_is_full = False
        self.dropped = 0
        """Requests that were not metered, since too many sums waited or they could not be spilled."""

    @property
    def waiting(self) -> int:
        """Sums that the store has not confirmed."""
        return len(self._tallies) + (len(self._unconfirmed_batch.sums) if self._unconfirmed_batch else 0)

    @property
    def units(self) -> Mapping[str, float]:
        """Compute units of this process's requests and jobs so far by tenant, also those that are not stored yet."""
        # Added up when they are asked for: a request that ends would else pay for it.
        units = self._units.copy()
        for (_, tenant, _), tally in self._tallies.items():
            units.add(tenant, tally.compute_units)
        return units.used

    @property
    def trouble(self) -> str:
        """Why usage is not stored now, as a sentence that names no place; empty while it is."""
        why = "its disk is full" if self._store_is_full else "its store is away or fails; the log says how"
        return f"usage cannot be stored, and waits in memory: {why}" if self._failures else ""

    def add(self, tenant: str, model: str, outcome: Outcome, rows: int, elements: int, compute_units: float, cache_hit: bool, /) -> None:
        """Count a request that ends now. If too many sums wait, one with a new day, tenant or model is
        dropped.
        """
        # Each request that ends is added: the sums that are there already are found without a call.
        is_today = self._day_began_s <= self._today_s() < self._day_ends_s
        tally = self._tallies.get((self._day, tenant, model)) if is_today else None
        if tally is None:
            tally = self._tally(tenant, model)
        if tally is None:
            self.dropped += 1
            return
        if outcome is _ANSWERED:  # nearly all
            tally.requests += 1
        else:
            counted_as = COUNTED_AS[outcome]
            setattr(tally, counted_as, getattr(tally, counted_as) + 1)
        tally.rows += rows if rows < MOST else MOST
        tally.elements += elements if elements < MOST else MOST
        tally.compute_units += compute_units
        if cache_hit:
            tally.cache_hits += 1

    def add_units(self, tenant: str, model: str, compute_units: float, /) -> None:
        """Charge compute units for requests that were already counted when they ended."""
        tally = self._tally(tenant, model)
        if tally is not None:
            tally.compute_units += compute_units

    def note_units(self, tenant: str, compute_units: float) -> None:
        """Count the units of a job for the metrics alone: the job's record has them, too, and they are stored by it."""
        self._units.add(tenant, compute_units)

    def add_hits(self, tenant: str, model: str, *, requests: int, rows: int, elements: int) -> None:
        """Count cache hits; `rows` and `elements` are the sums over all of them."""
        tally = self._tally(tenant, model)
        if tally is None:
            self.dropped += requests
            return
        tally.requests += requests
        tally.cache_hits += requests
        tally.rows += rows
        tally.elements += elements

    def add_refusals(self, tenant: str, model: str, *, requests: int) -> None:
        """Count requests that were refused as equal ones were."""
        tally = self._tally(tenant, model)
        if tally is None:
            self.dropped += requests
        else:
            tally.refused += requests

    def add_log(self, log: RequestLog) -> None:
        """Write requests to another log, too, from now on."""
        self._logs.append(log)
        self.has_log = True

    def remove_log(self, log: RequestLog) -> None:
        """Write requests to that log no longer. Idempotent."""
        self._logs = [each for each in self._logs if each is not log]
        self.has_log = bool(self._logs)

    def add_tokens(self, tenant: str, model: str, input_tokens: int, output_tokens: int, /) -> None:
        """Count the tokens of a request that is counted by itself when it ends."""
        tally = self._tally(tenant, model)
        if tally is not None:
            tally.input_tokens += min(input_tokens, MOST)
            tally.output_tokens += min(output_tokens, MOST)

    def log(self, event: UsageEvent) -> None:
        """Write a line to each log of requests."""
        self._logged += 1
        event.number = self._logged
        for log in self._logs:
            log.write(event)

    async def run(self) -> None:
        """Send batches until cancelled: twice a second, in order; while the store is away, less often,
        without giving up.
        """
        while True:
            await asyncio.sleep(restart_delay_s(self._failures, limits=_BACK_OFF) if self._failures else PERIOD_S)
            try:
                await self._send()
            except (StoreUnavailable, TimeoutError) as exc:
                self._store_is_full = isinstance(exc, StoreUnavailable) and exc.is_full
                self._fail(f"the usage store is away, usage waits in memory: {str(exc) or 'it did not answer'}")
            except Exception:
                # A defect of a store must not end the gateway, nor lose the batch.
                _log.exception("usage could not be stored; it will be sent again")
                self._store_is_full = False
                self._failures += 1

    async def close(self, timeout_s: float) -> None:
        """Send what waits for at most `timeout_s`, then spill the rest to disk; nothing is accepted from then
        on.

        `run` must have ended. If cancelled, spill at once.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._send()
        except (StoreUnavailable, TimeoutError) as exc:
            self._fail(f"the usage store is away at the end: {str(exc) or 'it did not answer in time'}")
        except Exception:
            _log.exception("usage could not be stored at the end")
        finally:
            # Without an await, so that not even a cancellation can interrupt it.
            self._spill_rest()
            self._max_sums = 0

    def _tally(self, tenant: str, model: str) -> _Tally | None:
        """Return today's sums of this tenant and model; None if there is no room for new ones."""
        now_s = self._today_s()
        if not self._day_began_s <= now_s < self._day_ends_s:
            self._turn_day(now_s)
        key = (self._day, tenant, model)
        tally = self._tallies.get(key)
        if tally is None and len(self._tallies) < self._max_sums:
            tally = self._tallies[key] = _Tally()
            self._units.know(tenant)
        return tally

    def _turn_day(self, now_s: float) -> None:
        """Change to the day of `now_s`, be it later or earlier: the clock may have been set back."""
        self._day, self._day_began_s = day_of(now_s), now_s // DAY_S * DAY_S
        self._day_ends_s = self._day_began_s + DAY_S

    async def _send(self) -> None:
        """Send what earlier processes spilled, so that order is kept; then what waits now, without what
        arrives meanwhile.
        """
        if self._spill_may_hold_batches:
            for spilled in self._spill.batches():
                await self._add(spilled)
                self._spill.remove(spilled)
            self._spill_may_hold_batches = False
        left = self.waiting
        while left > 0 and (batch := self._next_batch()) is not None:
            await self._add(batch)
            self._unconfirmed_batch = None
            left -= len(batch.sums)

    async def _add(self, batch: UsageBatch) -> None:
        # One that takes longer may have been added all the same: sent again, it is known by its id.
        async with asyncio.timeout(ADD_TIMEOUT_S):
            await self._store.add(batch)
        if self._failures:
            _log.info("the usage store accepts usage again")
        self._failures = 0

    def _next_batch(self) -> UsageBatch | None:
        """Return the unconfirmed batch unchanged, else make one of the oldest waiting sums; None if nothing
        waits.

        An unconfirmed batch must stay as it is: the store may have counted it, and recognizes it by its id.
        """
        if self._unconfirmed_batch is None and self._tallies:
            oldest = list(islice(self._tallies, BATCH_SUMS))
            sums = [(key, self._tallies.pop(key).usage()) for key in oldest]
            for (_, tenant, _), usage in sums:
                self._units.add(tenant, usage.compute_units)
            self._unconfirmed_batch = UsageBatch(self._new_id(), tuple((make_storable_key(*key), usage) for key, usage in sums))
        return self._unconfirmed_batch

    def _spill_rest(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._unconfirmed_batch = None
            try:
                self._spill.write(batch)
            except StoreUnavailable as exc:
                self.dropped += batch.requests
                _log.error("usage of %d requests is lost: %s", batch.requests, exc)

    def _fail(self, message: str) -> None:
        if not self._failures:
            _log.warning("%s", message)
        self._failures += 1
