"""Detects a process with a stale view: it asks the leader for a model although replicas exist, since its list of servers differs.

Each gateway follows the list of a fleet's servers by itself, and its requests cannot use a replica on a server that its list lacks.
The request to the leader says only how many replicas the process sees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from control_plane.fleet.domain.leadership.report import Wanted

_SEES_WITHIN_S = 2.0
"""Time within which a process that waits for a model sees a replica that it can see at all: it reads the
indexes many times a second."""

_ASKS_WITHIN_S = 1.0
"""A process that still waits asks again within this time; what comes later is a new request."""


@dataclass(slots=True)
class _Wish:
    """An unmet request for a model: since when it has been repeated, and when it came last."""

    since_s: float
    last_s: float


class StaleViewDetector:
    """Detector, at the fleet's leader, of processes that do not see replicas which the leader sees."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._wishes: dict[tuple[str, str | None], _Wish] = {}

    def needs_one_more(self, wanted: Wanted, ready: int) -> bool:
        """Whether a process has asked for so long, although there are `ready` replicas here, that it needs
        one more where it looks."""
        key, now_s = (wanted.model, wanted.pool), self._now_s()
        self._wishes = {each: wish for each, wish in self._wishes.items() if now_s - wish.last_s <= _ASKS_WITHIN_S}
        # The process sees as many replicas as there are: its view is not stale.
        if ready <= wanted.ready:
            self._wishes.pop(key, None)
            return False
        wish = self._wishes.setdefault(key, _Wish(now_s, now_s))
        wish.last_s = now_s
        if now_s - wish.since_s < _SEES_WITHIN_S:
            return False
        # Start anew: the replica that is loaded now needs time to appear.
        del self._wishes[key]
        return True
