"""Membership of a fleet of attached Tritons: servers join and leave as a list (`fleet/ports.ServerList`) changes.

Each server has a task from when it joins until it has left. This module does not know where the list is kept, nor how a server
is connected.
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
"""Time between two looks at the list."""


class Running(Protocol):
    """One server's connections and health checks in this gateway."""

    async def run(self) -> None:
        """Watch over the server until cancelled; then its connections are closed."""


class FleetChanges(Protocol):
    """The part of `fleet/fleet_service` that membership needs."""

    def change(self, listed: ListedServer) -> None:
        """Take over what the list says of a server now."""

    async def drain(self, name: str) -> None:
        """Drain a server: return when nothing is in flight there."""

    def forget(self, name: str) -> None:
        """Forget a server whose connections are closed."""


@dataclass(slots=True, eq=False)
class _Joined:
    """A server that has joined, and the signal for it to leave."""

    listed: ListedServer
    unit: Running
    leaves: asyncio.Event = field(default_factory=asyncio.Event)


class FleetMembers:
    """Membership of one process's fleet: adds and removes servers as the list changes. Every gateway follows
    the list by itself, and may be behind or ahead of others for a moment.

    That is harmless. A gateway that still lists a server finds there what is left of it, one that does not
    list it sends nothing there; and only the leader decides what is loaded where, which all find in Triton's
    index. A model that one of the gateways cannot see is loaded where both look.
    """

    def __init__(
        self,
        listed: ServerList,
        servers: Servers,
        fleet: FleetChanges,
        join: Callable[[ListedServer], Running],
        *,
        first: Sequence[ListedServer],
        start_timeout_s: float,
    ) -> None:
        """`first` is what the list says now. `join` makes a server known to the gateway, and is called once
        for each. One server must be up within `start_timeout_s`."""
        self._list = listed
        self._servers = servers
        self._fleet = fleet
        self._join = join
        self._start_timeout_s = start_timeout_s
        self._wanted = first
        self._logged = ""
        """The last logged error, so that a list or a server that cannot be used is tried again and again but
        logged once."""
        self._joined = {each.name: _Joined(each, join(each)) for each in first}

    async def run(self) -> None:
        """Follow the list until cancelled. Raises StartupError, in an exception group: no server is up in
        time."""
        async with asyncio.TaskGroup() as tasks:
            for joined in self._joined.values():
                tasks.create_task(self._live(joined), name=joined.listed.name)
            tasks.create_task(self._require_one(), name="first-server")
            while True:
                await asyncio.sleep(_POLL_S)
                await self._read()
                self._follow(tasks)

    async def _require_one(self) -> None:
        """Raise if no server has been up within the start timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._start_timeout_s):
                await self._servers.wait_until_up()
        # One that was up and crashed since is enough: its address is right.
        if not any(member.has_been_up for member in self._servers.members.values()):
            raise StartupError(
                f"no server of {self._list.name} answered within {self._start_timeout_s:g} s (TIDEGATE_START_TIMEOUT_S); do they run there?"
            )

    async def _read(self) -> None:
        """Read the list if it has changed; a list that cannot be used leaves the servers as they are."""
        if await asyncio.to_thread(self._list.has_changed):
            try:
                self._wanted = await asyncio.to_thread(self._list.read)
            except StartupError as exc:
                self._log_once(f"the list of servers has changed and cannot be used, the servers stay as they are: {exc}")
            else:
                self._logged = ""
                _log.info("%s lists %d servers", self._list.name, len(self._wanted))

    def _follow(self, tasks: asyncio.TaskGroup) -> None:
        """Let servers leave that are listed no more or at another address, change those that are listed
        otherwise, and add new ones."""
        wanted = {each.name: each for each in self._wanted}
        for name, joined in self._joined.items():
            listed = wanted.get(name)
            # Another address is another Triton: the old one is drained, and the new one joins by its name
            # afterwards.
            if listed is None or listed.endpoints != joined.listed.endpoints:
                joined.leaves.set()
            elif listed != joined.listed and not joined.leaves.is_set():
                joined.listed = listed
                self._fleet.change(listed)
        for listed in self._wanted:
            if not self._is_free(listed):
                continue
            try:
                joined = self._joined[listed.name] = _Joined(listed, self._join(listed))
            except StartupError as exc:  # a certificate's file may be gone by now; the next look tries again
                self._log_once(f"server {listed.name} cannot join the fleet: {exc}")
                continue
            tasks.create_task(self._live(joined), name=listed.name)
            _log.info("server %s joins the fleet, at %s", listed.name, listed.endpoints.address)

    def _log_once(self, error: str) -> None:
        """Log an error that comes again at each look, once."""
        if error != self._logged:
            _log.error("%s", error)
        self._logged = error

    def _is_free(self, listed: ListedServer) -> bool:
        """Whether no server has this name or address, not even one that is draining: then the new one waits
        until that has left."""
        present = [joined.listed for joined in self._joined.values()]
        return all(each.name != listed.name and each.endpoints.address != listed.endpoints.address for each in present)

    async def _live(self, joined: _Joined) -> None:
        """Run one server from when it joins to when it has left."""
        name = joined.listed.name
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(joined.unit.run(), name=f"running-{name}")
            await joined.leaves.wait()
            # Drained before its connections are closed: requests in flight need them.
            await self._fleet.drain(name)
            running.cancel()
        self._fleet.forget(name)
        del self._joined[name]
        _log.info("server %s has left the fleet", name)
