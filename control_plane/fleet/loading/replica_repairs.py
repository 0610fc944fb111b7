"""Reloads replicas whose stub has died, each in a background task; `fleet/loading/dead_stubs` decides when."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from control_plane.core.model import ModelState
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import Replica, Server
from control_plane.fleet.loading.server_turns import ServerTurns

_log = logging.getLogger(__name__)


class RepairLeader(Protocol):
    """Line to the fleet's leader, where that may be another process: `fleet/leadership/leader_requests`."""

    def request_repair(self, server: str, model: str) -> bool:
        """Ask the leader to load a server's dead replica of a model anew; False if this process is the
        leader."""


class ReplicaRepairs:
    """Repairer of replicas: loads them anew if this process is the fleet's leader; otherwise it asks the
    leader to."""

    def __init__(self, turns: ServerTurns, leader: RepairLeader | None = None) -> None:
        """Without `leader` this process is it."""
        self._turns = turns
        self._state = turns.state
        self._leader = leader
        self._pauses: dict[tuple[str, str], tuple[Replica, asyncio.Event]] = {}
        """(Server, model) -> its replica whose back-off is not over, and what ends that."""

    def repair(self, replica: Replica, server: Server, *, reason: str, dead: str, delay_s: float = 0.0, has_hung: bool = False) -> bool:
        """Load a replica anew whose stub, or that of its step `dead`, has died, or was ended as it `has_hung`, in a background
        task that waits for `delay_s` first, or have the leader do so. No request is sent to it until then. False if nothing was
        begun: it is being loaded already, its model is not known, or nothing can be loaded now."""
        if self._leader is not None and self._leader.request_repair(server.name, replica.model):
            self._state.note_dead(server, replica, has_hung=has_hung)
            return True
        is_under_way = replica.state is not ModelState.READY or (server.name, replica.model) in self._state.awaiting_fingerprint
        # One that somebody else has just loaded from a new folder is described within seconds.
        is_known = replica.model in self._state.fleet.models
        if is_under_way or not is_known or not self._turns.tasks.is_open:
            return False
        # Triton goes on listing the dead replica as READY; this keeps it LOADING in the view until it is
        # repaired.
        self._state.mark_loading(server, replica, after_s=delay_s, has_hung=has_hung)
        self._turns.tell(FleetEventKind.LOST, replica.model, server.name, reason)
        if delay_s:
            where = {"model": replica.model, "server": server.name}
            _log.warning("a replica that dies again and again is loaded anew in %.0f s: %s", delay_s, reason, extra=where)
        self._turns.tasks.create_task(self._revive(replica, server, dead, delay_s), name=f"revive-{replica.model}")
        return True

    def hasten(self, replica: Replica, server: Server) -> None:
        """Load the replica anew now that waits for its back-off, if it does."""
        waiting, is_over = self._pauses.get((server.name, replica.model), (None, None))
        if waiting is replica and is_over is not None:
            self._state.mark_loading(server, replica)
            is_over.set()

    async def _pause(self, replica: Replica, server: Server, delay_s: float) -> None:
        if not delay_s:
            return
        key, is_over = (server.name, replica.model), asyncio.Event()
        self._pauses[key] = replica, is_over
        try:
            # Not `wait_for`, which on Python 3.11 swallows a cancellation that comes just as it is woken.
            async with asyncio.timeout(delay_s):
                await is_over.wait()
        except TimeoutError:
            pass
        finally:
            if self._pauses.get(key) == (replica, is_over):
                del self._pauses[key]

    async def _revive(self, replica: Replica, server: Server, dead: str, delay_s: float) -> None:
        """Carry out the repair in the server's turn."""
        facts = self._state.fleet.models[replica.model]
        try:
            await self._pause(replica, server, delay_s)
            began_s = self._state.now_s()
            async with self._turns.turn(server.name):
                # Another load may have replaced the dead replica while this one waited for its turn.
                if server.replicas.get(replica.model) is replica:
                    await self._turns.loader_of(server.name).repair(facts, dead)
                    if dead != replica.model and (step := server.replicas.get(dead)) is not None:
                        step.revive(self._state.now_s())
                    self._turns.tell(FleetEventKind.LOADED, replica.model, server.name, "", self._state.now_s() - began_s)
                    # Unloaded meanwhile by an administrator: only a new replica's unload ends in Triton.
                    if self._state.specs.is_suspended(replica.model):
                        await self._turns.loader_of(server.name).unload(replica.model)
        except Exception as exc:  # as in `ReplicaLoader`
            self._turns.note_failure(facts, server.name, exc)
        finally:
            self._state.awaiting_fingerprint.discard((server.name, replica.model))
            self._state.changed()
