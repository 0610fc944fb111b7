"""Gate between callers' requests and work in the background: that begins only where a server would be idle otherwise.

What most models compute cannot be interrupted, so a request waits for whatever was begun before it came. While there are
callers, work in the background is begun one by one, at moments in which none of their requests is under way; once none
came for a while, nothing holds it up here. So that it never stands still, some is begun without such a moment. Work that
is preempted, since its model has a lane for it (`python_backends/batching/background`), is begun at any moment.

`admission/permit` tells it of each request. It knows those of this process only, and of a fleet which servers do nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from control_plane.admission.domain.idle_capacity import PATIENCE_S, is_alone, may_begin, may_begin_preempted

_ENTERS_S = 0.005
"""Time from when a piece may begin until the fleet counts it at a server: for so long none begins at an idle one."""


class BackgroundGate:
    """Gate of one process for work in the background."""

    def __init__(self, servers: Callable[[], int], now_s: Callable[[], float]) -> None:
        """`servers` says how many compute side by side now; `now_s` is the event loop's clock."""
        self._servers = servers
        self._now_s = now_s
        self.has_idle_server: Callable[[str], bool | None] = lambda model: None
        """Says of a fleet's model whether a server that has it loaded does nothing; None: none has it, or it is no fleet."""
        self._requests = 0
        self._entered_s = float("-inf")
        self._seen_s = float("-inf")
        self._plain, self._preempted = _Line(), _Line()

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
        if self._plain.waiting:
            self._wake(self._plain)

    async def begin(self, model: str = "", *, is_preempted: bool = False) -> None:
        """Wait until work for the model may begin, and count it as begun until `end`. Cancelled it has not begun."""
        line = self._preempted if is_preempted else self._plain
        if not line.waiting and self._may_begin(line, model, 0.0):
            self._note_begun(line)
            return
        waiter = _Waiter(asyncio.get_running_loop().create_future(), model, self._now_s())
        line.waiting.append(waiter)
        self._wake(line)  # what waits before it may wait for another server
        try:
            while not waiter.turn.done():
                await asyncio.wait((waiter.turn,), timeout=PATIENCE_S)
                self._wake(line)
        except asyncio.CancelledError:
            if waiter.turn.done():
                self.end(is_preempted=is_preempted)
            else:
                line.waiting.remove(waiter)
            raise

    def end(self, *, is_preempted: bool = False) -> None:
        """Note that a piece of background work has ended."""
        line = self._preempted if is_preempted else self._plain
        line.begun -= 1
        self._wake(line)

    @property
    def _unseen_s(self) -> float:
        return 0.0 if self._requests else self._now_s() - self._seen_s

    def _may_begin(self, line: _Line, model: str, waited_s: float) -> bool:
        begun, servers, unseen_s = line.begun, self._servers(), self._unseen_s
        if line is self._preempted:
            return may_begin_preempted(begun=begun, servers=servers, unseen_s=unseen_s)
        has_idle_server = self.has_idle_server(model)
        if has_idle_server and self._now_s() - self._entered_s < _ENTERS_S:
            has_idle_server = False
        return may_begin(
            requests=self._requests,
            begun=begun,
            servers=servers,
            unseen_s=unseen_s,
            waited_s=waited_s,
            has_idle_server=has_idle_server,
        )

    def _note_begun(self, line: _Line) -> None:
        line.begun += 1
        if line is self._plain:
            self._entered_s = self._now_s()

    def _wake(self, line: _Line) -> None:
        """Begin what waits, the first first, as far as it may begin now."""
        refused = set[str]()
        for waiter in list(line.waiting):
            if waiter.model not in refused and self._may_begin(line, waiter.model, self._now_s() - waiter.since_s):
                line.waiting.remove(waiter)
                self._note_begun(line)
                waiter.turn.set_result(None)
            else:
                refused.add(waiter.model)  # those behind it have waited for less


@dataclass(slots=True, eq=False)
class _Waiter:
    """Work that waits for its turn, for which model, and since when."""

    turn: asyncio.Future[None]
    model: str
    since_s: float


@dataclass(slots=True, eq=False)
class _Line:
    """Work of one kind: how much has begun, and what waits."""

    begun: int = 0
    waiting: deque[_Waiter] = field(default_factory=deque)
