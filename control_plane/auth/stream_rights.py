"""Ends streams under way whose caller's key or token is no longer valid; the doors ask it to watch theirs.

A request is asked who sends it when it comes, a stream may go on for hours. One look at all of them five times a second, which costs a
comparison each while nothing has changed, and a timer only while there are any.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

from control_plane.auth.access import Access
from control_plane.core.errors import LimitExceeded, Unauthenticated
from control_plane.core.principal import NOBODY, Principal

_LOOK_EVERY_S = 0.2
"""A revocation holds within a second, of which the store's news of it takes a part."""

Confirm = Callable[[], Principal]
"""Asks again who it is that shows this. Raises Unauthenticated."""


class StreamRights:
    """Watch over the streams of one process."""

    def __init__(self, access: Access, *, today_s: Callable[[], float] = time.time) -> None:
        """`today_s` is seconds since 1970."""
        self._access = access
        self._today_s = today_s
        self._generation = access.generation
        self._watches: set[Watch] = set()
        self._next_look: asyncio.TimerHandle | None = None

    def watch(self, principal: Principal, confirm: Confirm) -> Watch:
        """Watch one stream until the watch is closed."""
        watch = Watch(self, principal, confirm)
        if principal is not NOBODY:
            self._watches.add(watch)
            if self._next_look is None:
                self._generation = -1  # what has changed since it was let in
                self._next_look = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look)
        return watch

    def forget(self, watch: Watch) -> None:
        self._watches.discard(watch)

    def _look(self) -> None:
        generation, today_s = self._access.generation, self._today_s()
        has_changed, self._generation = generation != self._generation, generation
        for watch in tuple(self._watches):
            if has_changed or watch.is_due(today_s):
                watch.confirm()
        self._next_look = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look) if self._watches else None


class Watch:
    """One stream's, and a context manager: what runs in it is cancelled when the rights end, and Unauthenticated raised in its place."""

    def __init__(self, rights: StreamRights, principal: Principal, confirm: Confirm) -> None:
        self._rights = rights
        self._principal = principal
        self._confirm = confirm
        self._task: asyncio.Task[object] | None = None
        self._is_interrupted = False
        self.on_end: Callable[[], None] | None = None
        """Called once when the rights end."""
        self.error: Unauthenticated | None = None
        """Why the rights have ended, if they have."""

    def is_due(self, today_s: float) -> bool:
        """Whether it may have ended though nothing has changed here: by time, or as an issuer has withdrawn its keys."""
        expires_s = self._principal.expires_s
        return not self._principal.is_known or (expires_s is not None and today_s >= expires_s)

    def confirm(self) -> None:
        """End what is watched unless its caller's rights go on."""
        try:
            self._principal = self._confirm()
        except Unauthenticated as exc:
            self._end(exc)
        except LimitExceeded:
            pass  # nobody can tell just now: the next look asks again

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

    async def __aenter__(self) -> Watch:
        if self.error is not None:
            raise self.error
        self._task = asyncio.current_task()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        task, self._task = self._task, None
        if not self._is_interrupted or task is None:
            return
        self._is_interrupted = False
        if kind is None:  # it ended by itself in the same turn of the loop: the cancellation comes at its next wait, which is this one
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                kind = asyncio.CancelledError
        others = task.uncancel()
        if others == 0 and kind is not None and issubclass(kind, asyncio.CancelledError) and self.error is not None:
            raise self.error from None
