"""The servers of a fleet that others run: they join and leave as a list says that somebody keeps (`fleet/ports.ServerList`).

Each server has a task of its own from when it joins to when it has left. What keeps the list, and what a server is, others know.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from control_plane.core.endpoints import ListedServer
from control_plane.core.errors import StartupError
from control_plane.fleet.ports import ServerList
from control_plane.triton.servers import Servers

_log = logging.getLogger(__name__)

_POLL_S = 1.0


class Running(Protocol):
    """One server's part of the gateway."""

    async def run(self) -> None:
        """Watch over it until cancelled; then its connections are closed."""


class Fleet(Protocol):
    """`fleet/fleet_service`, as far as its servers go."""

    def change(self, listed: ListedServer) -> None:
        """What its list says of a server is something else now."""

    async def see_off(self, name: str) -> None:
        """Return when nothing is under way there."""

    def forget(self, name: str) -> None:
        """Its connections are closed."""


@dataclass(slots=True, eq=False)
class _Joined:
    listed: ListedServer
    unit: Running
    leaves: asyncio.Event = field(default_factory=asyncio.Event)


class FleetMembers:
    """Adds and removes a process's servers as the list changes; other gateways follow the same list by themselves,
    and for a moment may be behind or ahead.

    That is harmless: who still lists a server finds there what it finds, who does not sends nothing there, and what is loaded where is
    the owner's to say, and found in Triton's index by all. So a model that one of them misses is loaded where both look.
    """

    def __init__(
        self,
        listed: ServerList,
        servers: Servers,
        fleet: Fleet,
        join: Callable[[ListedServer], Running],
        *,
        first: Sequence[ListedServer],
        start_timeout_s: float,
    ) -> None:
        """`first` is what the list says now; `join` makes a server known to the gateway and is told of each once. One of them must be up
        within `start_timeout_s`."""
        self._list = listed
        self._servers = servers
        self._fleet = fleet
        self._join = join
        self._start_timeout_s = start_timeout_s
        self._wanted = first
        self._told = ""
        """Of what is wrong with the list: one that cannot be read is tried again and again."""
        self._joined = {each.name: _Joined(each, join(each)) for each in first}

    async def run(self) -> None:
        """Follow the list until cancelled. Raises StartupError, in a group: no server is up in time."""
        async with asyncio.TaskGroup() as tasks:
            for joined in self._joined.values():
                tasks.create_task(self._live(joined), name=joined.listed.name)
            tasks.create_task(self._require_one(), name="first-server")
            while True:
                await asyncio.sleep(_POLL_S)
                await self._read()
                self._follow(tasks)

    async def _require_one(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._start_timeout_s):
                await self._servers.wait_until_up()
        if not any(member.has_been_up for member in self._servers.members.values()):
            raise StartupError(
                f"no server of {self._list.name} answered within {self._start_timeout_s:g} s (TIDEGATE_START_TIMEOUT_S); do they run there?"
            )

    async def _read(self) -> None:
        if await asyncio.to_thread(self._list.has_changed):
            try:
                self._wanted = await asyncio.to_thread(self._list.read)
            except StartupError as exc:
                if str(exc) != self._told:
                    _log.error("the list of servers has changed and cannot be used, the servers stay as they are: %s", exc)
                self._told = str(exc)
            else:
                self._told = ""
                _log.info("%s lists %d servers", self._list.name, len(self._wanted))

    def _follow(self, tasks: asyncio.TaskGroup) -> None:
        wanted = {each.name: each for each in self._wanted}
        for name, joined in self._joined.items():
            listed = wanted.get(name)
            if listed is None or listed.endpoints != joined.listed.endpoints:
                joined.leaves.set()
            elif listed != joined.listed and not joined.leaves.is_set():
                joined.listed = listed
                self._fleet.change(listed)
        for listed in self._wanted:
            if self._is_free(listed):
                joined = self._joined[listed.name] = _Joined(listed, self._join(listed))
                tasks.create_task(self._live(joined), name=listed.name)
                _log.info("server %s joins the fleet, at %s", listed.name, listed.endpoints.place)

    def _is_free(self, listed: ListedServer) -> bool:
        """Whether nobody has its name or place, also none that is about to leave: then it joins when that has left."""
        present = [joined.listed for joined in self._joined.values()]
        return all(each.name != listed.name and each.endpoints.place != listed.endpoints.place for each in present)

    async def _live(self, joined: _Joined) -> None:
        name = joined.listed.name
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(joined.unit.run(), name=f"running-{name}")
            await joined.leaves.wait()
            await self._fleet.see_off(name)
            running.cancel()
        self._fleet.forget(name)
        del self._joined[name]
        _log.info("server %s has left the fleet", name)
