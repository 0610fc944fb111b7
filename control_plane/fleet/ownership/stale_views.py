"""Finds out that a process which asks for a model does not see the copies that there are: it lists other servers, for a moment or longer.

Gateways follow the list of a fleet's servers each by itself. A copy on a server that one of them does not list yet, or any more, is none
for its requests; all it can say is that it still sees so many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from control_plane.fleet.domain.report import Wanted

_SEES_WITHIN_S = 2.0
"""Who waits for a model looks at its servers many times a second."""

_ASKS_WITHIN_S = 1.0
"""And asks again; a wish that comes later is another."""


@dataclass(slots=True)
class _Wish:
    since_s: float
    last_s: float


class UnseenCopies:
    """Remembers, at the fleet's owner, which processes do not see which copies."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._wishes: dict[tuple[str, str | None], _Wish] = {}

    def lacks(self, wanted: Wanted, ready: int) -> bool:
        """Whether somebody has asked for it for so long, with `ready` copies here, that one more is needed where they look."""
        key, now_s = (wanted.model, wanted.pool), self._now_s()
        self._wishes = {each: wish for each, wish in self._wishes.items() if now_s - wish.last_s <= _ASKS_WITHIN_S}
        if ready <= wanted.ready:
            self._wishes.pop(key, None)
            return False
        wish = self._wishes.setdefault(key, _Wish(now_s, now_s))
        wish.last_s = now_s
        if now_s - wish.since_s < _SEES_WITHIN_S:
            return False
        del self._wishes[key]  # that one has time to come
        return True
