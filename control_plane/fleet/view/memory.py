"""Keeps what is known and wanted of a fleet's models the same in all processes that share it, and for those after them.

The owner writes what it has measured; what administrators want is written by whichever process they told. All read both twice a
second. While the store is away each works on with what it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from control_plane.core.errors import DeadlineExceeded, StoreUnavailable
from control_plane.core.model import MODEL_NAME
from control_plane.fleet.domain.memory import Measured, Wish
from control_plane.fleet.ports import FleetMemory
from control_plane.fleet.view.state import FleetState

_log = logging.getLogger(__name__)

_NOTHING = Wish()
_PERIOD_S = 0.5
_SERVICES_S = 10.0
_KEPT_S = 3600.0
"""Of models that nobody has any more: a server or a store that is away for less has them still."""


class Remembering:
    """Synchronises one process's measurements and wishes with the fleet's memory."""

    def __init__(self, memory: FleetMemory, state: FleetState, *, is_owner: Callable[[], bool]) -> None:
        self.is_owner = is_owner
        self._memory = memory
        self._state = state
        self._found: Mapping[str, Measured] = {}
        """As it was last read."""
        self._has_owned = False
        """At the last turn: before, others may have measured since."""
        self._services_s = self._state.now_s()
        self._unknown_since_s: dict[str, float] = {}
        self._turn = asyncio.Lock()
        """What was read before somebody here wanted something must not stand after it."""
        self._turned = asyncio.Event()
        self._is_away = False

    async def recall(self) -> None:
        """What there is from before; call it before anything is loaded."""
        await self._try_to_turn()

    async def run(self) -> None:
        """Take over and tell what changes, until cancelled."""
        while True:
            await self._try_to_turn()
            self._turned.set()
            await asyncio.sleep(_PERIOD_S)

    async def wait_for_turn(self) -> None:
        """Return when it has looked again, or should have."""
        self._turned.clear()
        try:
            async with asyncio.timeout(2 * _PERIOD_S):
                await self._turned.wait()
        except TimeoutError:
            return

    async def wish(self, model: str, wish: Wish | None) -> None:
        """An administrator wants this of it from now on; None: what its folder says. Raises StoreUnavailable: nobody was told."""
        await self.change_wish(model, lambda _: wish or _NOTHING)

    async def change_wish(self, model: str, change: Callable[[Wish], Wish]) -> None:
        """What `change` makes of what is wanted of it by now, whoever has said that. Raises StoreUnavailable, and what `change` raises."""
        async with self._turn:
            wishes = await self._read_wishes()
            before = wishes.get(model, _NOTHING)
            wish = change(before)
            if wish != before:
                await self._memory.wish({model: None if wish == _NOTHING else wish})
            others = {name: each for name, each in wishes.items() if name != model}
            self._follow(others if wish == _NOTHING else {**others, model: wish})

    def is_pending(self, model: str, wish: Wish) -> bool:
        """Whether the owner has yet to do what is asked with that."""
        return wish.asked not in ("", self._state.measurements.of(model).answered)

    async def answer(self, model: str, *, timeout_s: float) -> str:
        """Wait for what the owner says of what is asked of it now: why it cannot be, or nothing. Raises DeadlineExceeded.

        Who asks for the same since is waited for too; who wants something else ends the waiting.
        """
        asked = standing = self._state.wishes.get(model, _NOTHING)
        try:
            async with asyncio.timeout(timeout_s):
                while self.is_pending(model, asked) and self.is_pending(model, standing) and standing.is_withdrawn == asked.is_withdrawn:
                    await self.wait_for_turn()
                    standing = self._state.wishes.get(model, _NOTHING)
        except TimeoutError as exc:
            raise DeadlineExceeded(f"the fleet's owner has not done it for model '{model}' within {timeout_s:g} s") from exc
        known = self._state.measurements.of(model)
        return known.refusal if known.answered in (asked.asked, standing.asked) else ""

    async def close(self) -> None:
        """Tell what is new; the owner calls it while it still is."""
        if self.is_owner() and not self._is_away:
            self._state.measurements.take_down_services()
            await self._try_to_turn()
        with suppress(StoreUnavailable):
            await self._memory.close()

    async def _try_to_turn(self) -> None:
        try:
            async with self._turn:
                self._follow(await self._read_wishes())
                await self._share(await self._memory.measured())
            self._is_away = False
        except StoreUnavailable as exc:
            if not self._is_away:
                _log.warning("what is known of the fleet's models cannot be shared; each gateway goes by what it has: %s", exc)
            self._is_away = True

    async def _read_wishes(self) -> Mapping[str, Wish]:
        """What the store has lost it is told again: else what administrators have unloaded would come back."""
        found, known = await self._memory.wishes(), self._state.wishes
        if found is not None:
            return found
        if known:
            _log.warning("what administrators have said of %d models was lost by the store, and is written there again", len(known))
            await self._memory.wish(known)
        return known

    def _follow(self, wishes: Mapping[str, Wish]) -> None:
        if wishes != self._state.wishes:
            self._state.follow(wishes)

    async def _share(self, found: Mapping[str, Measured]) -> None:
        owned, self._has_owned = self._has_owned, self.is_owner()
        if not (owned and self._has_owned):
            self._take_over(found)
        self._found = found
        if self._has_owned:
            await self._tell(found)

    def _take_over(self, found: Mapping[str, Measured]) -> None:
        """What is there no more the owner has let go, or the store has lost it: then it may yet be of use to the next owner."""
        if found is not self._found:
            self._state.recall({name: known for name, known in found.items() if known != self._found.get(name)})

    async def _tell(self, found: Mapping[str, Measured]) -> None:
        if (now_s := self._state.now_s()) - self._services_s >= _SERVICES_S:
            self._services_s = now_s
            self._state.measurements.take_down_services()
        gone = self._gone(found)
        for name in gone:
            self._state.measurements.recall(name, None)
        known = {name: each for name, each in self._state.measurements.known.items() if MODEL_NAME.fullmatch(name)}
        changes = {name: each for name, each in known.items() if each != found.get(name)}  # others' names no store gives back
        if changes or gone & found.keys():
            await self._memory.measure({**changes, **dict.fromkeys(gone & found.keys())})
        if forgotten := gone & self._state.wishes.keys():
            await self._memory.wish(dict.fromkeys(forgotten))

    def _gone(self, found: Mapping[str, Measured]) -> set[str]:
        """Those that nobody has had for long."""
        now_s = self._state.now_s()
        remembered = found.keys() | self._state.measurements.known.keys() | self._state.wishes.keys()
        unknown = remembered - self._state.fleet.models.keys()
        self._unknown_since_s = {name: self._unknown_since_s.get(name, now_s) for name in unknown}
        return {name for name, since_s in self._unknown_since_s.items() if now_s - since_s > _KEPT_S}
