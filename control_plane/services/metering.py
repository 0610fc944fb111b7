"""Takes bookkeeping off the request path: requests leave an event behind, which is added to the usage store later.

`record` is called where a request ends and never waits. Each event that it accepts is counted once by the store: a batch
has an id, is sent again under it until the store confirms it, and at a stop the store cannot take part in goes to disk
for the next process. What a kill -9 loses is what waits: half a second's requests while the store keeps up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from uuid import uuid4

from control_plane.domain.errors import StoreUnavailable
from control_plane.domain.usage import UsageBatch, UsageEvent
from control_plane.policy.restart import RestartLimits, restart_delay_s
from control_plane.ports import RequestLog, UsageSpill, UsageStore

_log = logging.getLogger(__name__)

PERIOD_S = 0.5
BATCH_EVENTS = 1000
ADD_TIMEOUT_S = 30.0
"""A store that takes longer over a batch counts as away, and is sent the same batch again."""
_BACK_OFF = RestartLimits(first_delay_s=PERIOD_S, max_delay_s=10.0)


class Metering:
    """The events of one process, on their way to a store."""

    def __init__(
        self,
        *,
        store: UsageStore,
        spill: UsageSpill,
        queue_size: int,
        log: RequestLog | None = None,
        new_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        """Takes up what earlier processes spilled as soon as `run` runs."""
        self._store = store
        self._spill = spill
        self._queue_size = queue_size
        self._log = log
        self._new_id = new_id
        self._waiting: deque[UsageEvent] = deque()
        self._unconfirmed: UsageBatch | None = None
        self._may_have_spilled = True
        self._failures = 0
        self.dropped = 0
        """Events that were not metered, since too many waited or they could not be spilled."""

    @property
    def waiting(self) -> int:
        """Events that the store has not confirmed."""
        return len(self._waiting) + (len(self._unconfirmed.events) if self._unconfirmed else 0)

    @property
    def is_behind(self) -> bool:
        """Whether the store did not take the last batch."""
        return self._failures > 0

    def record(self, event: UsageEvent) -> None:
        """Count it, soon; while the queue is full the newest event, this one, is dropped."""
        if self._log is not None:
            self._log.write(event)
        if len(self._waiting) < self._queue_size:
            self._waiting.append(event)
        else:
            self.dropped += 1

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
            self._queue_size = 0

    async def _send(self) -> None:
        """First what earlier processes left, so that order is kept over them too."""
        if self._may_have_spilled:
            for spilled in self._spill.batches():
                await self._add(spilled)
                self._spill.remove(spilled)
            self._may_have_spilled = False
        while (batch := self._next_batch()) is not None:
            await self._add(batch)
            self._unconfirmed = None

    async def _add(self, batch: UsageBatch) -> None:
        async with asyncio.timeout(ADD_TIMEOUT_S):
            await self._store.add(batch)
        if self._failures:
            _log.info("the usage store takes usage again")
        self._failures = 0

    def _next_batch(self) -> UsageBatch | None:
        """The one that has not been confirmed, unchanged, else one of what waits."""
        if self._unconfirmed is None and self._waiting:
            events = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH_EVENTS))]
            self._unconfirmed = UsageBatch(self._new_id(), tuple(events))
        return self._unconfirmed

    def _spill_rest(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._unconfirmed = None
            try:
                self._spill.write(batch)
            except StoreUnavailable as exc:
                self.dropped += len(batch.events)
                _log.error("usage of %d requests is lost: %s", len(batch.events), exc)

    def _fail(self, message: str) -> None:
        if not self._failures:
            _log.warning("%s", message)
        self._failures += 1
