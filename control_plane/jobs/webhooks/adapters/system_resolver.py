"""Resolver of names by the machine's own configuration, on threads of its own; implements `webhooks/ports.Resolver`.

A caller may name a host whose name servers never answer. So lookups do not take the event loop's threads, which others
need; those under way are bounded, and a process that ends does not wait for them.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress

_MOST = 64
"""Lookups at a time."""


class SystemResolver:
    """Resolver by `getaddrinfo`."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(_MOST)

    async def addresses(self, host: str) -> Sequence[str]:
        await self._room.acquire()  # held until the thread ends, whoever still waits for it
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[str]] = loop.create_future()

        def tell(found: Sequence[str]) -> None:
            self._room.release()
            if not answer.done():
                answer.set_result(found)

        def look_up() -> None:
            found: list[str] = []
            with suppress(OSError, UnicodeError):
                found = [str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(tell, list(dict.fromkeys(found)))

        try:
            threading.Thread(target=look_up, name="webhook-name", daemon=True).start()
        except RuntimeError:  # the machine has no thread left: nothing is found now, and the room is another's
            tell(())
        return await answer
