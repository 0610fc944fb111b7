"""Synchronises measurements and desired states of a fleet's models between all processes that share it, and keeps them for later ones.

The leader writes measurements; a process that an administrator calls writes the desired state. All processes read both twice a
second. While the store is unavailable each continues with what it has read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from control_plane.concurrency.broadcast import Broadcast
from control_plane.core.errors import DeadlineExceeded, StoreUnavailable
from control_plane.core.model import MODEL_NAME
from control_plane.fleet.domain.memory import DesiredState, Measured
from control_plane.fleet.ports import FleetMemory
from control_plane.fleet.view.state import FleetState

_log = logging.getLogger(__name__)

_NOTHING = DesiredState()
_PERIOD_S = 0.5
_SERVICES_S = 10.0
_KEPT_S = 3600.0
"""Retention of records of models that are not known any more: a server or a store that is away for a shorter
time still has them."""


class MemorySync:
    """Synchroniser between one process's measurements and desired states and the store that the fleet shares
    (`fleet/ports.FleetMemory`)."""

    def __init__(self, memory: FleetMemory, state: FleetState, *, is_leader: Callable[[], bool]) -> None:
        self.is_leader = is_leader
        self._memory = memory
        self._state = state
        self._found: Mapping[str, Measured] = {}
        """The measurements as last read."""
        self._was_leader = False
        """Whether this process was the leader at the last turn. If it was not, other processes may have
        measured since."""
        self._services_s = self._state.now_s()
        self._unknown_since_s: dict[str, float] = {}
        self._turn = asyncio.Lock()
        """Keeps a read that began before an administrator's change here from being applied after it."""
        self._turned = Broadcast()
        self._is_away = False

    async def recall(self) -> None:
        """Read what the store has; call it before anything is loaded."""
        await self._try_to_sync()

    async def run(self) -> None:
        """Synchronise both ways, until cancelled."""
        while True:
            await self._try_to_sync()
            self._turned.wake()
            await asyncio.sleep(_PERIOD_S)

    async def wait_for_sync(self) -> None:
        """Return after the next synchronisation, or when it is overdue."""
        await self._turned.wait(2 * _PERIOD_S)

    async def wish(self, model: str, wish: DesiredState | None) -> None:
        """Set the desired state of a model; None for what its folder says. Raises StoreUnavailable: no
        process has been told."""
        await self.change_desired(model, lambda _: wish or _NOTHING)

    async def change_desired(self, model: str, change: Callable[[DesiredState], DesiredState]) -> None:
        """Read a model's desired state from the store, and write what `change` makes of it. Raises
        StoreUnavailable, and what `change` raises."""
        async with self._turn:
            wishes = await self._read_wishes()
            before = wishes.get(model, _NOTHING)
            wish = change(before)
            if wish != before:
                await self._memory.wish({model: None if wish == _NOTHING else wish})
            others = {name: each for name, each in wishes.items() if name != model}
            # Applied here at once: the caller's next step must see it, without waiting for the next turn.
            self._follow(others if wish == _NOTHING else {**others, model: wish})

    def is_pending(self, model: str, wish: DesiredState) -> bool:
        """Whether the leader has yet to carry out what this desired state asks."""
        return wish.asked not in ("", self._state.measurements.record_of(model).answered)

    async def answer(self, model: str, *, timeout_s: float) -> str:
        """Wait until the leader has carried out what is asked now. Returns why it refused, or an empty text.
        Raises DeadlineExceeded.

        If another administrator asks for the same meanwhile, that is waited for, too; a wish for something
        else ends the wait.
        """
        asked = standing = self._state.specs.wishes.get(model, _NOTHING)
        try:
            async with asyncio.timeout(timeout_s):
                while self.is_pending(model, asked) and self.is_pending(model, standing) and standing.is_suspended == asked.is_suspended:
                    await self.wait_for_sync()
                    standing = self._state.specs.wishes.get(model, _NOTHING)
        except TimeoutError as exc:
            raise DeadlineExceeded(f"the fleet's leader has not carried out the request for '{model}' within {timeout_s:g} s") from exc
        known = self._state.measurements.record_of(model)
        return known.refusal if known.answered in (asked.asked, standing.asked) else ""

    async def close(self) -> None:
        """Write what is new, and close the store; the leader calls it before it gives up its lease."""
        if self.is_leader() and not self._is_away:
            self._state.measurements.save_service_times()
            await self._try_to_sync()
        # What was measured since the last turn is lost then, and measured again.
        with suppress(StoreUnavailable):
            await self._memory.close()

    async def _try_to_sync(self) -> None:
        """Synchronise once. An outage of the store is logged when it begins, not at every turn."""
        try:
            async with self._turn:
                self._follow(await self._read_wishes())
                await self._share(await self._memory.measured())
            self._is_away = False
        except StoreUnavailable as exc:
            if not self._is_away:
                _log.warning("the fleet's shared memory cannot be reached; each gateway goes on with what it knows of the models: %s", exc)
            self._is_away = True

    async def _read_wishes(self) -> Mapping[str, DesiredState]:
        """Read the desired states. A store that has lost them is told them again: otherwise suspended models
        would come back."""
        found, known = await self._memory.wishes(), self._state.specs.wishes
        if found is not None:
            return found
        if known:
            _log.warning("the store has lost what administrators have said of %d models; it is written there again", len(known))
            await self._memory.wish(known)
        return known

    def _follow(self, wishes: Mapping[str, DesiredState]) -> None:
        if wishes != self._state.specs.wishes:
            self._state.apply_wishes(wishes)

    async def _share(self, found: Mapping[str, Measured]) -> None:
        """Take over what others have measured, or write what this process has, if it is the leader."""
        was_leader, is_leader = self._was_leader, self.is_leader()
        self._was_leader = is_leader
        # A new leader reads once before it writes: the one before it may have measured until the last moment.
        if not (was_leader and is_leader):
            self._take_over(found)
        self._found = found
        if is_leader:
            await self._tell(found)

    def _take_over(self, found: Mapping[str, Measured]) -> None:
        """Take over records that changed. One that is gone is kept here: the store may have lost it, and the
        next leader can use it."""
        if found is not self._found:
            self._state.specs.recall({name: known for name, known in found.items() if known != self._found.get(name)})

    async def _tell(self, found: Mapping[str, Measured]) -> None:
        """Write what has changed since the last read, and remove models that are gone."""
        if (now_s := self._state.now_s()) - self._services_s >= _SERVICES_S:
            self._services_s = now_s
            self._state.measurements.save_service_times()
        gone = self._gone(found)
        for name in gone:
            self._state.measurements.recall(name, None)
        changes = self._changes(found)
        if changes or gone & found.keys():
            await self._memory.measure({**changes, **dict.fromkeys(gone & found.keys())})
        # A desired state of a model that is gone for good would otherwise stay for ever.
        if forgotten := gone & self._state.specs.wishes.keys():
            await self._memory.wish(dict.fromkeys(forgotten))

    def _changes(self, found: Mapping[str, Measured]) -> dict[str, Measured | None]:
        """Return the records that the store does not have."""
        known, changes = self._state.measurements.known, dict[str, Measured | None]()
        for name, each in known.items():
            if (told := found.get(name)) is each:
                continue
            if told is not None and told == each:
                known[name] = told  # the very object, so that the next turn need not compare: there may be thousands
            # Only valid names: a store would refuse to return a record of any other, which would then be written
            # in every turn.
            elif MODEL_NAME.fullmatch(name):
                changes[name] = each
        return changes

    def _gone(self, found: Mapping[str, Measured]) -> set[str]:
        """Remembered models that no server and no folder has had for `_KEPT_S`."""
        now_s = self._state.now_s()
        remembered = found.keys() | self._state.measurements.known.keys() | self._state.specs.wishes.keys()
        unknown = remembered - self._state.fleet.models.keys()
        self._unknown_since_s = {name: self._unknown_since_s.get(name, now_s) for name in unknown}
        return {name for name, since_s in self._unknown_since_s.items() if now_s - since_s > _KEPT_S}
