"""Streams of logged events (usage, audit) as server-sent events: each reader is a place in a log, which it looks at again and
again. A reader that is slow costs no memory, and one that comes back goes on where it was. Used by `admin/paths/event_streams`.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from control_plane.admin.events.feed import GAP, require_room
from control_plane.core.errors import StoreUnavailable
from control_plane.events.domain.event_id import event_id, number_in
from control_plane.events.ports import LoggedEvent, NumberedLog
from control_plane.frontends.http.answers.event_stream import HEAD, HEARTBEAT, HEARTBEAT_S, RETRY, render_event

LOOK_EVERY_S = 0.5
PAGE = 50


class LogReaders:
    """Registry of those who read the logs of one store over the admin API, which bounds how many there are."""

    def __init__(self, store: str) -> None:
        """`store` is a part of each id (8 hexadecimal digits), since numbers begin anew with another store."""
        self.store = store
        self._readers: Counter[str] = Counter()

    async def read(self, log: NumberedLog, who: str, *, after: str, backlog: bool) -> LogStream:
        """Begin to read: after the event of this id, else at the oldest one (`backlog`) or at the next.

        Raises:
            Overloaded: `who`, or all together, read too many times already.
            StoreUnavailable: the log cannot be read.
        """
        newest = await log.newest()
        require_room(own=self._readers[who], in_all=self._readers.total())
        number, has_gap = (0 if backlog else newest), False
        if after:
            last = number_in(self.store, after)
            number = newest + 1 if last is None else last
            has_gap = number > newest
        self._readers[who] += 1
        return LogStream(self, log, who, 0 if has_gap else number, has_gap=has_gap)

    def forget(self, who: str) -> None:
        self._readers[who] -= 1
        if not self._readers[who]:
            del self._readers[who]


class LogStream:
    """Stream of a log's events to one caller: a `triton/ports.HttpStream`, which the server reads as fast as its client."""

    status = 200
    head = HEAD

    def __init__(self, readers: LogReaders, log: NumberedLog, who: str, number: int, *, has_gap: bool) -> None:
        self._readers = readers
        self._log = log
        self._who = who
        self._number = number
        """Number of the last event that was sent; 0: none, and it is not known which one comes first."""
        self._has_gap = has_gap
        self._follow = True
        self._is_begun = self._is_closed = False

    async def receive(self) -> bytes | None:
        """Return the next events, a heartbeat after a time without any, or None at the end."""
        if not self._is_begun:
            self._is_begun = True
            return RETRY + (GAP if self._has_gap else b"")
        for _ in range(round(HEARTBEAT_S / LOOK_EVERY_S)):
            if found := await self._page():
                return self._rendered(found)
            if not self._follow:
                return None
            await asyncio.sleep(LOOK_EVERY_S)
        return HEARTBEAT

    def that_follows(self, follow: bool) -> LogStream:
        """Return it, to go on or, with False, to end with what there is."""
        self._follow = follow
        return self

    def close(self) -> None:
        """Make room for another reader. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._readers.forget(self._who)

    async def _page(self) -> list[LoggedEvent]:
        try:
            return await self._log.page(self._number, limit=PAGE)
        except StoreUnavailable:
            if not self._follow:
                raise
            return []  # it goes on where it was once the store is there again

    def _rendered(self, found: list[LoggedEvent]) -> bytes:
        gap = GAP if self._number and found[0].number > self._number + 1 else b""
        self._number = found[-1].number
        store = self._readers.store
        return gap + b"".join(render_event("message", each.encoded, id=event_id(store, each.number)) for each in found)
