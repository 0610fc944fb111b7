"""A node's board of fingerprints: every gateway applies that contents are unknown before they change.

`models/loaded_contents` publishes on it, as on the board of a gateway's own processes. A gateway that does not
acknowledge in time is cut off, and the change goes on once nothing that was promised to it holds any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple

from control_plane.concurrency.broadcast import Broadcast
from control_plane.core.fingerprint import Fingerprint
from control_plane.node.domain.messages import Contents, KnownContents
from control_plane.node.domain.promises import Promises
from control_plane.node.ports import GatewayLink

_log = logging.getLogger(__name__)


class NodeBoard:
    """Fingerprint board of one node: `models/ports.FingerprintBoard` for any number of gateways."""

    def __init__(self, promises: Promises, *, now_s: Callable[[], float]) -> None:
        """`now_s` is a clock that runs on while the machine sleeps."""
        self._promises = promises
        self._now_s = now_s
        self._known: dict[str, Fingerprint | None] = {}
        self._links: dict[GatewayLink, int] = {}
        """Gateway -> the number that it has acknowledged last."""
        self._number = 0
        self._changed = Broadcast()

    def join(self, link: GatewayLink) -> Contents:
        """Tell a gateway of all changes from now on; returns all that is known now."""
        self._links[link] = self._number
        return Contents(self._number, {name: _fields(known) for name, known in self._known.items()})

    def left(self, link: GatewayLink, *, says_goodbye: bool) -> None:
        """Forget a gateway whose connection is closed. Without a goodbye it may rely for a while on what it was
        told."""
        self._links.pop(link, None)
        if says_goodbye:
            self._promises.released(link)
        self._changed.wake()

    def promised(self, link: GatewayLink) -> None:
        """Note that a gateway's ping is being answered."""
        self._promises.made(link, self._now_s())

    def acknowledged(self, link: GatewayLink, number: int) -> None:
        """Note that a gateway applies this message and all before it."""
        if link in self._links:
            self._links[link] = max(self._links[link], number)
        self._changed.wake()

    # `models/ports.FingerprintBoard`

    async def publish(self, changes: Mapping[str, Fingerprint | None]) -> None:
        self._known.update(changes)
        await self._tell(changes)

    async def make_unknown(self, models: Iterable[str]) -> None:
        await self.publish(dict.fromkeys(models))

    async def forget(self, models: Iterable[str]) -> None:
        gone = tuple(models)
        for name in gone:
            self._known.pop(name, None)
        await self._tell({}, gone)

    async def _tell(self, changes: Mapping[str, Fingerprint | None], gone: tuple[str, ...] = ()) -> None:
        """Tell all gateways, and return when each applies it, or relies on nothing any more."""
        if not changes and not gone:
            return
        self._number += 1
        number, asked, now_s = self._number, list(self._links), self._now_s()
        # Counted from here: an answer to a ping after this message reaches a gateway after this message.
        until_s = {link: now_s + self._promises.left_s(link, now_s) for link in asked}
        lost_until_s = now_s + self._promises.longest_s(now_s, but=frozenset(asked))
        message = Contents(number, {name: _fields(known) for name, known in changes.items()}, gone)
        for link in asked:
            link.send(message)
        for link in asked:
            if not await self._applies(link, number, until_s[link]):
                _log.warning("gateway %s has not said in time that it knows what changes here; it is cut off", link.gateway)
                link.close()
        if None in changes.values():
            await self._wait_until(lost_until_s)

    async def _applies(self, link: GatewayLink, number: int, until_s: float) -> bool:
        """Wait until a gateway applies a message, or relies on nothing; False where it did not say so."""
        while (left_s := until_s - self._now_s()) > 0:
            if self._links.get(link, -1) >= number or self._promises.left_s(link, self._now_s()) == 0.0:
                return True
            await self._changed.wait(left_s)
        return self._links.get(link, -1) >= number or link not in self._links

    async def _wait_until(self, until_s: float) -> None:
        while (left_s := until_s - self._now_s()) > 0:
            await asyncio.sleep(left_s)


def _fields(known: Fingerprint | None) -> KnownContents | None:
    return None if known is None else astuple(known)
