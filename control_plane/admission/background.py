"""Gate between callers' requests and work in the background: that begins only where a server would be idle otherwise.

What Triton computes cannot be interrupted, so a request waits for whatever was begun before it came. While there are
callers, work in the background is begun one by one, at moments in which none of their requests is under way; once none
came for a while, nothing holds it up here. So that it never stands still, some is begun without such a moment.

`admission/admission` tells it of each request. It knows those of this process only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from control_plane.admission.domain.idle_capacity import PATIENCE_S, is_alone, may_begin


class BackgroundGate:
    """Gate of one process for work in the background."""

    def __init__(self, servers: int, now_s: Callable[[], float]) -> None:
        """`servers` is how many compute side by side; `now_s` is the event loop's clock."""
        self._servers = servers
        self._now_s = now_s
        self._requests = self._begun = 0
        self._seen_s = float("-inf")
        self._waiting: deque[_Waiter] = deque()

    @property
    def are_callers_present(self) -> bool:
        """Whether requests of callers are under way, or were a moment ago."""
        return not is_alone(self._unseen_s)

    def request_began(self) -> None:
        """Note that a caller's request goes to a server, or waits for its turn."""
        self._requests += 1

    def request_ended(self, now_s: float | None = None) -> None:
        """Note that a caller's request has ended, with whatever outcome. `now_s` is the loop's time, if the caller has
        just read it."""
        self._requests -= 1
        self._seen_s = self._now_s() if now_s is None else now_s
        if self._waiting:
            self._wake()

    async def begin(self) -> None:
        """Wait until work may begin, and count it as begun until `end`. Cancelled it has not begun."""
        if not self._waiting and self._may_begin(0.0):
            self._begun += 1
            return
        waiter = _Waiter(asyncio.get_running_loop().create_future(), self._now_s())
        self._waiting.append(waiter)
        try:
            while not waiter.turn.done():
                await asyncio.wait((waiter.turn,), timeout=PATIENCE_S)
                self._wake()
        except asyncio.CancelledError:
            if waiter.turn.done():
                self.end()
            else:
                self._waiting.remove(waiter)
            raise

    def end(self) -> None:
        """Note that a piece of background work has ended."""
        self._begun -= 1
        self._wake()

    @property
    def _unseen_s(self) -> float:
        return 0.0 if self._requests else self._now_s() - self._seen_s

    def _may_begin(self, waited_s: float) -> bool:
        unseen_s = self._unseen_s
        return may_begin(requests=self._requests, begun=self._begun, servers=self._servers, unseen_s=unseen_s, waited_s=waited_s)

    def _wake(self) -> None:
        """Begin what waits, the first first, as far as it may begin now."""
        while self._waiting and self._may_begin(self._now_s() - self._waiting[0].since_s):
            self._begun += 1
            self._waiting.popleft().turn.set_result(None)


@dataclass(slots=True, eq=False)
class _Waiter:
    """Work that waits for its turn, and since when."""

    turn: asyncio.Future[None]
    since_s: float
