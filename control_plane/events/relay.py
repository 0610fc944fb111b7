"""Relay of logs (usage, audit) to the streams that others subscribe to: each event once, whatever dies.

How far a log is published is noted with the events themselves, in the same Redis and in one step. So any gateway goes on
where another has ended, and streams that have lost their last second go on from there: what is sent again has the same id.
The log need only keep what is not published yet.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from control_plane.core.errors import StoreUnavailable
from control_plane.events.domain.stream import Stream
from control_plane.events.ports import EventStreams, LoggedEvent, NumberedLog, Position

_log = logging.getLogger(__name__)

PERIOD_S = 0.5
PAGE = 200
_RETRY_S = 2.0


class EventRelay:
    """Publisher of logs for one gateway; several gateways may run one for the same logs."""

    def __init__(self, streams: EventStreams, logs: Mapping[Stream, NumberedLog], *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._streams = streams
        self._logs = logs
        self._now_s = now_s
        self._current_s = dict.fromkeys(logs, now_s())
        self.published = dict.fromkeys(logs, 0)
        """Events that this gateway has published, by stream."""
        self.lost = dict.fromkeys(logs, 0)
        """Events that the log had removed before they could be published, by stream."""

    @property
    def behind_s(self) -> float:
        """Seconds since all that is in the logs was last known to be published."""
        return max((max(0.0, self._now_s() - at_s - 2 * PERIOD_S) for at_s in self._current_s.values()), default=0.0)

    async def run(self) -> None:
        """Publish until cancelled, through outages of either side."""
        async with asyncio.TaskGroup() as tasks:
            for stream, log in self._logs.items():
                tasks.create_task(self._follow(stream, log), name=f"publish-{stream}")

    async def _follow(self, stream: Stream, log: NumberedLog) -> None:
        is_away = False
        while True:
            try:
                while await self.step(stream, log):
                    await asyncio.sleep(0)  # a Redis on this machine answers at once: others' turn
                self._current_s[stream] = self._now_s()
                if is_away:
                    _log.info("events of the stream %s are published again", stream)
                is_away = False
            except StoreUnavailable as exc:
                if not is_away:
                    _log.warning("events of the stream %s are not published for now, and wait in their log: %s", stream, exc)
                is_away = True
            except Exception:
                _log.exception("events of the stream %s could not be published; they are tried again", stream)
                is_away = True
            await asyncio.sleep(_RETRY_S if is_away else PERIOD_S)

    async def step(self, stream: Stream, log: NumberedLog) -> bool:
        """Publish the next events of a log, some at a time; return whether there may be more. Raises StoreUnavailable."""
        before = await self._streams.position(stream)
        found = await self._following(log, before)
        if not found:
            return False
        after = Position(found[-1].number, found[-1].id)
        if await self._streams.advance(stream, [each.encoded for each in found], before=before, after=after):
            self.published[stream] += len(found)
            self._note_lost(stream, found[0], before)
        return True

    async def _following(self, log: NumberedLog, position: Position) -> list[LoggedEvent]:
        """Return the events after a position; from the first one on where the log was begun anew meanwhile."""
        if not position.number:
            return await log.page(0, limit=PAGE)
        # The event at the position, too: by its id the log is known for the one that was published.
        found = await log.page(position.number - 1, limit=PAGE + 1)
        if not found and await log.newest() >= position.number:
            return []
        if not found or (found[0].number == position.number and found[0].id != position.id):
            _log.warning("a log of events was begun anew, and is published from its first event on")
            return await log.page(0, limit=PAGE)
        return found[1:] if found[0].number == position.number else found

    def _note_lost(self, stream: Stream, first: LoggedEvent, before: Position) -> None:
        lost = first.number - before.number - 1
        if before.number and lost > 0:
            self.lost[stream] += lost
            _log.error("%d events of the stream %s were removed from their log before they could be published", lost, stream)
