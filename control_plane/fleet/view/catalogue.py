"""What clients of the v2 protocol are told of a fleet as if it were one Triton: which models there are, whether requests for one would be
served, and which servers can tell of it. Nothing here loads a model, and nothing counts as a use of one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from control_plane.core.errors import ControlPlaneError
from control_plane.core.model import ModelState, ModelVersion, rank_of
from control_plane.fleet.domain.counts import FleetCounts
from control_plane.fleet.domain.placement import Obstacle, Placement, place
from control_plane.fleet.view.state import FleetState
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import Servers

_log = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT")

_PASSING = frozenset((Obstacle.IN_USE, Obstacle.CHURN, Obstacle.LATE))
"""A request waits for these, or is to come again in a moment."""


class FleetCatalogue:
    """Lists a fleet's models as one process sees them: `inference/catalogue.Catalogue`."""

    def __init__(self, state: FleetState, servers: Servers) -> None:
        self._state = state
        self._servers = servers

    @property
    def counts(self) -> FleetCounts:
        return self._state.counts

    async def index(self, *, only_ready: bool = False) -> list[ModelVersion]:
        """Every model that there is, by name and version, each in the best state that it has anywhere; one that no server has yet is
        listed as Triton lists one that was never loaded. Raises UpstreamUnavailable: no server answers."""
        self._servers.pick()
        indexes = await asked_of_all(list(self._servers.live.values()), lambda server: server.control.index())
        lines = best_lines([line for index in indexes for line in index])
        if only_ready:
            return [line for line in lines if line.state is ModelState.READY]
        nowhere = self._state.fleet.models.keys() - {line.name for line in lines}
        why = self._state.measurements.why_failed
        lines += [ModelVersion(name, "", ModelState.UNAVAILABLE, why(name) or "") for name in nowhere]
        return sorted(lines, key=lambda line: (line.name, line.version))

    def knows(self, model: str) -> bool:
        """Whether there is such a model, loaded or not."""
        return model in self._state.fleet.models

    def is_ready(self, model: str) -> bool:
        """Whether a request for it would be served, if need be once it is loaded.

        Not so of one that nobody knows, that an administrator has unloaded, that has failed to load and is not tried again yet or is just
        now, or that no server can take.
        """
        fleet = self._state.fleet
        if not self.knows(model) or self._state.is_withdrawn(model):
            return False
        states = {server.copies[model].state for server in fleet.holders.get(model, {}).values() if server.is_up}
        if ModelState.READY in states:
            return True
        if ModelState.LOADING in states:  # once more, if it has failed: nobody can say what comes of that
            return self._state.measurements.of(model).failures == 0
        found = place(fleet, model, self._state.now_s())
        return isinstance(found, Placement) or found.obstacle in _PASSING

    def servers_of(self, model: str) -> list[Upstream]:
        """Those that have it ready; without a name all that are up, of which there must be one. Raises UpstreamUnavailable."""
        if not model:
            self._servers.pick()
            return list(self._servers.live.values())
        holders = self._state.fleet.holders.get(model, {})
        ready = {name for name, server in holders.items() if server.copies[model].state is ModelState.READY}
        return [upstream for name, upstream in self._servers.live.items() if name in ready]


def best_lines(lines: Sequence[ModelVersion]) -> list[ModelVersion]:
    """Of the indexes of several servers, the best first, one line for each version: READY if it is that anywhere, and of failures one that
    says why."""
    listed = {line.name for line in lines if line.version}
    there = {line.name for line in lines if line.state is not ModelState.UNAVAILABLE}
    best: dict[tuple[str, str], ModelVersion] = {}
    for line in lines:
        if not line.version and line.name in (there if line.reason else listed):  # it failed, or was never loaded there, but was elsewhere
            continue
        known = best.get((line.name, line.version))
        if known is None or _rank(line) < _rank(known):
            best[line.name, line.version] = line
    return sorted(best.values(), key=_rank)


def _rank(line: ModelVersion) -> tuple[int, bool]:
    return rank_of(line.state), line.reason in ("", "unloaded")


async def asked_of_all(servers: Sequence[Upstream], ask: Callable[[Upstream], Awaitable[AnswerT]]) -> list[AnswerT]:
    """What those answer that do, at the same time; one that has just died must not keep the others from it. Raises what the first one
    raised when none does."""
    results = await asyncio.gather(*map(ask, servers), return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in errors:
        if not isinstance(error, ControlPlaneError):
            raise error
        _log.debug("a server is left out: %s", error)
    answers = [result for result in results if not isinstance(result, BaseException)]
    if errors and not answers:
        raise errors[0]
    return answers
