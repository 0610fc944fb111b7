"""Revocation for open streams: ends a stream whose caller's key or token is no longer valid. Called by the
frontends.

A request is authenticated when it comes, and a stream may go on for hours after. All streams are checked five
times a second, which costs one comparison each while nothing has changed; the timer runs only while there are
streams.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

from control_plane.auth.access import Access
from control_plane.core.errors import LimitExceeded, Unauthenticated
from control_plane.core.principal import ANONYMOUS, Principal

_LOOK_EVERY_S = 0.2
"""A revocation must hold within a second, and the store's news of it takes a part of that second."""
_ASKED_AT_ONCE = 32
"""Callers that are authenticated again in one turn of the loop, some 10 us each: all of them when a stored object has
changed, and all with tokens at each look."""

Reauthenticate = Callable[[], Principal]
"""Authenticates the stream's caller again, by the same headers. Raises Unauthenticated, LimitExceeded."""


class StreamRights:
    """Periodic check of the rights of all open streams of one process."""

    def __init__(self, access: Access, *, today_s: Callable[[], float] = time.time) -> None:
        """`today_s` is the wall clock, in seconds since 1970."""
        self._access = access
        self._today_s = today_s
        self._generation = access.generation
        self._watches: set[RightsWatch] = set()
        self._next_look: asyncio.Handle | None = None

    def watch(self, principal: Principal, confirm: Reauthenticate) -> RightsWatch:
        """Watch a stream of `principal` until the watch is closed."""
        watch = RightsWatch(self, principal, confirm)
        if principal is not ANONYMOUS:
            self._watches.add(watch)
            if self._next_look is None:
                self._generation = -1  # the first check asks in any case: rights may have changed since the caller was authenticated
                self._next_look = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look)
        return watch

    def forget(self, watch: RightsWatch) -> None:
        self._watches.discard(watch)

    def _look(self) -> None:
        generation, today_s = self._access.generation, self._today_s()
        has_changed, self._generation = generation != self._generation, generation
        self._ask_some([watch for watch in self._watches if has_changed or watch.is_due(today_s)])

    def _ask_some(self, due: list[RightsWatch]) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(min(_ASKED_AT_ONCE, len(due))):
            watch = due.pop()
            if watch in self._watches:  # its stream may have ended in an earlier turn
                watch.reauthenticate()
        if due:
            self._next_look = loop.call_soon(self._ask_some, due)
        else:
            self._next_look = loop.call_later(_LOOK_EVERY_S, self._look) if self._watches else None


class RightsWatch:
    """Watch of one stream. As a context manager it is a cancel scope: when the caller's rights end, the task
    in it is cancelled and Unauthenticated is raised in place of the cancellation.
    """

    def __init__(self, rights: StreamRights, principal: Principal, confirm: Reauthenticate) -> None:
        self._rights = rights
        self._principal = principal
        self._confirm = confirm
        self._task: asyncio.Task[object] | None = None
        self._is_interrupted = False
        self.on_end: Callable[[], None] | None = None
        """Called once when the rights end."""
        self.error: Unauthenticated | None = None
        """Why the rights have ended; None while they hold."""

    def is_due(self, today_s: float) -> bool:
        """Whether the rights may have ended although no stored object changed: by expiry, or since the
        token's issuer has withdrawn a key.
        """
        expires_s = self._principal.expires_s
        return not self._principal.is_known or (expires_s is not None and today_s >= expires_s)

    def reauthenticate(self) -> None:
        """Authenticate the caller again, and end the stream if that fails."""
        try:
            self._principal = self._confirm()
        except Unauthenticated as exc:
            self._end(exc)
        except LimitExceeded:
            pass  # signatures of this source are not checked just now: the next check asks again

    def close(self) -> None:
        self._rights.forget(self)

    def _end(self, error: Unauthenticated) -> None:
        self.error = error
        self.close()
        if self._task is not None:
            self._is_interrupted = True
            self._task.cancel()
        if self.on_end is not None:
            self.on_end()

    async def __aenter__(self) -> RightsWatch:
        if self.error is not None:
            raise self.error
        self._task = asyncio.current_task()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Turn the cancellation of this watch into Unauthenticated; every other cancellation passes
        through.
        """
        task, self._task = self._task, None
        if not self._is_interrupted or task is None:
            return
        self._is_interrupted = False
        # The body ended by itself in the turn of the loop in which it was cancelled. The cancellation is
        # delivered at the task's next await, and must not escape from this scope: hence an await here.
        if kind is None:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                kind = asyncio.CancelledError
        # If others have cancelled the task as well, that cancellation wins.
        others = task.uncancel()
        if others == 0 and kind is not None and issubclass(kind, asyncio.CancelledError) and self.error is not None:
            raise self.error from None
