"""Lanes of suspects: the order in which requests under which a process may have died are sent to Triton again.

A suspect is sent alone, so that another death shows whether it was the cause. Alone is meant for all processes that
share the servers: two that each sent one at a time would blame the innocent one of two at the same replica. So one
process keeps the lanes for all: `inference/retries/queries_of_death` its own, `workers/suspect_turns` those of all workers.

Pure; keys are whatever the keeper tells its suspects apart by.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)

_ONE_DEATH_S = 10.0
"""Time after which another death is another matter."""


@dataclass(slots=True)
class _Lane(Generic[KeyT]):
    """Suspects of one model: those that are sent, and those that wait."""

    since_s: float
    widens: bool
    places: int = 1
    sent: set[KeyT] = field(default_factory=set)
    waiting: dict[KeyT, None] = field(default_factory=dict)
    """In the order in which they have asked."""


class SuspectLanes(Generic[KeyT]):
    """Lane of each model's suspects: one at a time. After a server's death, of which a request is seldom the cause,
    each answer lets one more through at once (slow start), so that many do not take long."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane[KeyT]] = {}
        self._models: dict[KeyT, str] = {}

    def died(self, model: str, now_s: float, *, is_stub: bool) -> None:
        """Note a death under a request of the model: the lane is narrow again after another death, or where it turns
        out that stubs die."""
        self._lanes = {
            name: lane for name, lane in self._lanes.items() if lane.sent or lane.waiting or now_s - lane.since_s <= _ONE_DEATH_S
        }
        lane = self._lanes.setdefault(model, _Lane(now_s, widens=not is_stub))
        if (is_stub and lane.widens) or now_s - lane.since_s > _ONE_DEATH_S:
            lane.since_s, lane.widens, lane.places = now_s, not is_stub, 1

    def ask(self, model: str, key: KeyT, now_s: float) -> bool:
        """Ask for a suspect to be sent. Returns whether it may be now; otherwise `end` of another one says so."""
        lane = self._lanes.setdefault(model, _Lane(now_s, widens=False))
        self._models[key] = model
        if lane.waiting or len(lane.sent) >= lane.places:
            lane.waiting[key] = None
            return False
        lane.sent.add(key)
        return True

    def end(self, key: KeyT, *, was_answered: bool = False) -> Iterator[KeyT]:
        """Note that a suspect has been sent and is done with, or that it waits no longer; yield those that may be sent
        now. An unknown key is ignored."""
        model = self._models.pop(key, None)
        if model is None:
            return
        lane = self._lanes[model]
        lane.waiting.pop(key, None)
        if key in lane.sent:
            lane.sent.remove(key)
            lane.places += was_answered and lane.widens
        while lane.waiting and len(lane.sent) < lane.places:
            following = next(iter(lane.waiting))
            del lane.waiting[following]
            lane.sent.add(following)
            yield following
