"""Answers calls of the v2 protocol for a whole fleet as if it were one Triton: which models exist, whether requests for one would be
served, and which servers have its metadata.

Nothing here loads a model or counts as a use of it: polling clients must not keep models loaded. The answers have the form of
Triton's repository index and readiness (KServe v2 protocol with Triton's model repository extension).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence, Set
from typing import TypeVar

from control_plane.core.errors import ControlPlaneError
from control_plane.core.model import ModelState, ModelVersion, rank_of
from control_plane.fleet.domain.counts import FleetCounts
from control_plane.fleet.domain.placement.placement import Obstacle, Placement, place
from control_plane.fleet.view.state import FleetState
from control_plane.inference.dispatch.catalogue import Askable
from control_plane.sharding.domain.plan import ONLY_VERSION
from control_plane.triton.ports import Upstream
from control_plane.triton.server_state import ServerState
from control_plane.triton.servers import Servers

_log = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT")

_PASSING = frozenset((Obstacle.IN_USE, Obstacle.CHURN, Obstacle.LATE))
"""Obstacles that pass: a request waits for them, or may come again in a moment."""


class FleetCatalogue:
    """Model catalogue of a fleet as one process sees it; it implements `inference/dispatch/catalogue.Catalogue`."""

    def __init__(self, state: FleetState, servers: Servers) -> None:
        self._state = state
        self._servers = servers

    @property
    def counts(self) -> FleetCounts:
        return self._state.counts

    async def index(self, *, only_ready: bool = False) -> list[ModelVersion]:
        """List every model by name and version, each in the best state that it has on any server.

        A model that no server has yet is listed as Triton lists one that was never loaded. Raises
        UpstreamUnavailable: no server answers.
        """
        # Raises if no server is up; without it an unreachable fleet would look like an empty one.
        indexes = await asked_of_all(self._servers.to_ask(), lambda server: server.control.index())
        if only_ready:
            indexes = [[line for line in index if line.state is ModelState.READY] for index in indexes]
        # In a thread: of thousands of models it takes tens of milliseconds, and any caller may ask.
        return await asyncio.to_thread(self._merged, indexes, frozenset() if only_ready else frozenset(self._state.fleet.models))

    def _merged(self, indexes: Sequence[Sequence[ModelVersion]], models: Set[str]) -> list[ModelVersion]:
        """Merge servers' indexes, with a line for each of these models that no server lists."""
        lines = best_lines([*sharded_lines(self._state), *(line for index in indexes for line in index)])
        nowhere, why = models - {line.name for line in lines}, self._state.measurements.why_failed
        lines += [ModelVersion(name, "", ModelState.UNAVAILABLE, why(name) or "") for name in nowhere]
        return sorted(lines, key=lambda line: (line.name, line.version))

    def knows(self, model: str) -> bool:
        """Whether there is such a model, loaded or not."""
        return model in self._state.fleet.models

    def is_ready(self, model: str) -> bool:
        """Whether a request for the model would be served, if need be once it is loaded.

        A cold model is ready: clients that poll before they send would otherwise never send. These are not: a
        model that is unknown, suspended by an administrator, in quarantine or being retried after a failure,
        or too large or otherwise unfit for every server.
        """
        fleet = self._state.fleet
        if not self.knows(model) or self._state.specs.is_suspended(model):
            return False
        if fleet.models[model].spec.sharded:
            parts = self._state.specs.parts_of(model)
            return (
                bool(parts)
                and not any(fleet.models[part].spec.sharded for part in parts if part in fleet.models)
                and all(map(self.is_ready, parts))
            )
        states = {replica.state for server, replica in fleet.replicas(model) if server.is_up}
        if ModelState.READY in states:
            return True
        # A retry after a failure may well fail again, so it does not count.
        if ModelState.LOADING in states:
            return self._state.measurements.record_of(model).failures == 0
        found = place(fleet, model, self._state.now_s())
        return isinstance(found, Placement) or found.obstacle in _PASSING

    def is_repeatable(self, model: str) -> bool:
        facts = self._state.fleet.models.get(model)
        return facts is not None and facts.spec.is_repeatable

    def is_loaded(self, model: str) -> bool:
        specs = self._state.specs
        return not specs.is_suspended(model) and all(map(self._state.fleet.ready_replicas, specs.parts_of(model) or (model,)))

    def has_idle_server(self, model: str) -> bool | None:
        replicas = self._state.fleet.ready_replicas(model)
        return any(not server.work_s for server, _ in replicas) if replicas else None

    def told_config(self, model: str) -> str:
        facts = self._state.fleet.models.get(model)
        return "" if facts is None else facts.spec.sharded

    def servers_of(self, model: str) -> list[ServerState]:
        """The servers that have the model ready; without a name all that are up. Silent ones are left out.
        Raises UpstreamUnavailable: no server is up and answers (without a name)."""
        if not model:
            return self._servers.to_ask()
        ready = {server.name for server, replica in self._state.fleet.replicas(model) if replica.state is ModelState.READY}
        return [server for name, server in self._servers.answering.items() if name in ready]


def sharded_lines(state: FleetState) -> list[ModelVersion]:
    """The lines of sharded models whose parts are all ready somewhere."""
    sharded = [name for name, facts in list(state.fleet.models.items()) if facts.spec.sharded and not state.specs.is_suspended(name)]
    parts = {name: state.specs.parts_of(name) for name in sharded}
    ready = {name for name, own in parts.items() if own and all(map(state.fleet.ready_replicas, own))}
    return [ModelVersion(name, ONLY_VERSION, ModelState.READY, "") for name in sorted(ready)]


def best_lines(lines: Sequence[ModelVersion]) -> list[ModelVersion]:
    """Merge the indexes of several servers, the best lines first: one line for each version, READY if any
    server has it ready, and of failures one that gives its reason."""
    # Servers contradict each other: one has a model that another failed to load, or has never loaded.
    listed = {line.name for line in lines if line.version}
    there = {line.name for line in lines if line.state is not ModelState.UNAVAILABLE}
    best: dict[tuple[str, str], ModelVersion] = {}
    for line in lines:
        # A line without a version says that the model failed, or was never loaded, on that server; another
        # server knows better.
        if not line.version and line.name in (there if line.reason else listed):
            continue
        known = best.get((line.name, line.version))
        if known is None or _rank(line) < _rank(known):
            best[line.name, line.version] = line
    return sorted(best.values(), key=_rank)


def _rank(line: ModelVersion) -> tuple[int, bool]:
    return rank_of(line.state), line.reason in ("", "unloaded")


async def asked_of_all(servers: Sequence[Askable], ask: Callable[[Upstream], Awaitable[AnswerT]]) -> list[AnswerT]:
    """Ask all servers at the same time and return the answers of those that do answer; one that has just died
    or fallen silent is left out.

    Raises the first server's error if none answers.
    """
    results = await asyncio.gather(*(server.ask(ask) for server in servers), return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in errors:
        if not isinstance(error, ControlPlaneError):
            raise error
        _log.debug("a server is left out: %s", error)
    answers = [result for result in results if not isinstance(result, BaseException)]
    if errors and not answers:
        raise errors[0]
    return answers
