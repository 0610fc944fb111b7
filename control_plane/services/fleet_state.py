"""The owner's picture of its fleet, kept right as requests come and go: `domain.fleet.Fleet`, which policies decide by."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from control_plane.domain.fleet import Copy, DescribedModel, Fleet, ModelFacts, ModelSpec, Server, Tier
from control_plane.domain.model import ModelState, ModelVersion
from control_plane.policy.demand import after_use
from control_plane.policy.load_plan import states_of
from control_plane.ports import Upstream
from control_plane.services.servers import Servers

_FIRST_LOAD_S = 2.0
"""Of a model that has never been loaded: a Python stub with its imports takes about that."""
_FIRST_SERVICE_S = 0.01
_PROCESS_BYTES = 48 * 2**20
"""What a model takes beside its weights until it has been measured: a Python stub with its imports."""
_SMOOTHING = 0.2
"""Of each new measurement of loads and services."""

NO_BUDGET = 2**62
"""More than anybody has."""


class Tiers(Protocol):
    """`services.model_tiers`."""

    def tier_of(self, model: str) -> Tier:
        """WARM, or COLD where it has to be fetched first."""

    def expected_fetch_s(self, model: str) -> float:
        """What that would take now."""


class Claim:
    """A request's place at a copy; released once."""

    __slots__ = ("_service_s", "_started_s", "_state", "copy", "facts", "server", "took_alone_s", "upstream")

    def __init__(self, state: FleetState, upstream: Upstream, server: Server, copy: Copy, facts: ModelFacts) -> None:
        self._state = state
        self.upstream = upstream
        self.server = server
        self.copy = copy
        self.facts = facts
        self._service_s = facts.service_s
        self._started_s = state.now_s()
        self.took_alone_s: float | None = None
        """Once it is released: seconds, if no other request hampered it."""
        copy.in_flight += 1
        copy.last_used_s = self._started_s
        server.work_s += self._service_s

    def release(self, *, answered: bool) -> None:
        """It is over; `answered` tells that the time it took says something of the model."""
        copy, server = self.copy, self.server
        copy.in_flight -= 1
        server.work_s = 0.0 if _is_idle(server) else max(0.0, server.work_s - self._service_s)
        if answered and copy.in_flight == 0:  # beside others it took as long as they made it take
            self.took_alone_s = took_s = self._state.now_s() - self._started_s
            self.facts.service_s += _SMOOTHING * (took_s - self.facts.service_s)
        self._state.released()


def _spec_of(model: DescribedModel) -> ModelSpec:
    """One copy of what has sequences, unless its owner says otherwise: every process then sends them to the same."""
    most = 1 if model.has_sequences and model.spec.max_copies is None else model.spec.max_copies
    return replace(model.spec, max_copies=most)


def _is_announced(copy: Copy) -> bool:
    return copy.state is ModelState.LOADING and copy.bytes == 0 and not copy.is_step


def _is_idle(server: Server) -> bool:
    return all(copy.in_flight == 0 for copy in server.copies.values())


class FleetState:
    """Of the process that owns the fleet."""

    def __init__(self, servers: Servers, *, budget_bytes: int, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is the loop's time."""
        self.now_s = now_s
        self.fleet = Fleet()
        for name in servers.members:
            self.fleet.add_server(Server(name, budget_bytes, is_up=False))
        self.described: Mapping[str, DescribedModel] = {}
        self._pins: dict[str, int] = {}
        """By model, the copies that administrators want at least, whatever its folder says."""
        self.settling: set[tuple[str, str]] = set()
        """By server, models that count as LOADING whatever Triton says: not all know yet what their answers are made of."""
        self.listed: dict[str, set[str]] = {}
        """By server, all that its Triton could load."""
        self._measured: set[str] = set()
        self._loads_s: dict[str, float] = {}
        """From the warm tier, as measured."""
        self._servers = servers
        self._change = asyncio.Event()
        self._room = asyncio.Event()
        servers.follow(self)

    # `services.servers.Follower`

    def up(self, upstream: Upstream, server: str) -> None:
        self.fleet.servers[server].is_up = True
        self.changed()

    def down(self, reason: str, server: str) -> None:
        """What was there is gone, and the state of sequences with it; what is loaded when it comes back is another copy."""
        at = self.fleet.servers[server]
        at.is_up, at.work_s = False, 0.0
        for model in list(at.copies):
            self.fleet.drop_copy(at, model)
        self.changed()

    def pin(self, model: str, min_copies: int) -> None:
        """Keep so many copies of it loaded from now on."""
        self._pins[model] = min_copies
        facts = self.fleet.models[model]
        facts.spec = self._pinned(facts.spec)

    def _pinned(self, spec: ModelSpec) -> ModelSpec:
        return replace(spec, min_copies=self._pins.get(spec.name, spec.min_copies))

    def describe(self, described: Mapping[str, DescribedModel], tiers: Tiers | None = None) -> None:
        """What models there are, as their folders say, and in `tiers` where those are. What has been measured of them stands."""
        self.described = described
        for name, model in described.items():
            facts = self.fleet.models.get(name)
            if facts is None:
                facts = self.fleet.models[name] = ModelFacts(model.spec, 0, load_s=_FIRST_LOAD_S, service_s=_FIRST_SERVICE_S)
            facts.spec = self._pinned(_spec_of(model))
            if facts.spec.resident_bytes is not None:
                facts.resident_bytes = facts.spec.resident_bytes
            elif name not in self._measured:
                facts.resident_bytes = model.file_bytes + _PROCESS_BYTES * (1 + len(model.steps))
            facts.tier = Tier.WARM if tiers is None else tiers.tier_of(name)
            fetch_s = 0.0 if tiers is None else tiers.expected_fetch_s(name)
            facts.load_s = self._loads_s.get(name, _FIRST_LOAD_S) + fetch_s
        for name in self.fleet.models.keys() - described.keys():
            if name not in self.fleet.holders:
                del self.fleet.models[name]
                self._measured.discard(name)
                self._loads_s.pop(name, None)

    def observe(self, server: str, index: Iterable[ModelVersion]) -> None:
        """What Triton says of itself; a copy that is only announced is not in its index yet."""
        fleet, at, now_s = self.fleet, self.fleet.servers[server], self.now_s()
        index = list(index)
        self.listed[server] = {line.name for line in index}
        found = states_of(index)
        steps = {step for name in found for step in self._steps_of(name)}
        for name in [name for name, copy in at.copies.items() if name not in found and not _is_announced(copy)]:
            fleet.drop_copy(at, name)
        for name, state in found.items():
            if state is ModelState.READY and (server, name) in self.settling:
                state = ModelState.LOADING
            copy = at.copies.get(name)
            if copy is None or _is_announced(copy):
                ready_s = copy.ready_s if copy is not None else now_s + self._load_s(name)
                copy = Copy(name, state, 0, now_s, ready_s, last_used_s=now_s)
                fleet.put_copy(at, copy)
            if copy.state is not state:
                copy.state, copy.since_s = state, now_s
            copy.is_step = name in steps
            copy.bytes = self.bytes_of(server, name)
        self.changed()

    def bytes_of(self, server: str, model: str) -> int:
        """What it takes there; an ensemble's steps are counted with it."""
        copy = self.fleet.servers[server].copies.get(model)
        if copy is not None and copy.is_step:
            return 0
        facts = self.fleet.models.get(model)
        return _PROCESS_BYTES if facts is None else facts.resident_bytes

    def has_sequences(self, model: str) -> bool:
        """Whether its copies hold what requests of a sequence have in common; not known of models that have no folder here."""
        described = self.described.get(model)
        return described is not None and described.has_sequences

    def steps_are_its_own(self, server: str, model: str) -> bool:
        """Whether an ensemble may take its steps along when it goes: no other that is there needs them."""
        steps = self._steps_of(model)
        others = {step for other in self.fleet.servers[server].copies if other != model for step in self._steps_of(other)}
        return bool(steps) and steps.isdisjoint(others)

    def _steps_of(self, model: str) -> frozenset[str]:
        described = self.described.get(model)
        return frozenset() if described is None else described.steps

    def _load_s(self, model: str) -> float:
        facts = self.fleet.models.get(model)
        return _FIRST_LOAD_S if facts is None else facts.load_s

    def claim(self, model: str, server: str) -> Claim | None:
        """A place at a copy that is ready; None: there is none, or the server is down."""
        at = self.fleet.servers[server]
        copy = at.copies.get(model)
        if copy is None or copy.state is not ModelState.READY or not self._servers.members[server].is_up:
            return None
        return Claim(self, self._servers.of(server), at, copy, self.fleet.models[model])

    def used(self, model: str) -> None:
        """A request for it has come."""
        after_use(self.fleet.models[model], self.now_s())

    def loaded(self, model: str, took_s: float, bytes_more: int | None) -> None:
        """It has been loaded; `bytes_more` is what the server holds more than before, where that can be told."""
        facts = self.fleet.models[model]
        before_s = self._loads_s.get(model, took_s)
        self._loads_s[model] = facts.load_s = before_s + _SMOOTHING * (took_s - before_s)
        if facts.spec.resident_bytes is None and bytes_more is not None and bytes_more > 0:
            known = facts.resident_bytes if model in self._measured else 0
            facts.resident_bytes = max(bytes_more, known)  # into memory that a server has kept from another it seems to take less
            self._measured.add(model)

    def is_empty(self, server: str) -> bool:
        """Whether nothing is there but what is announced."""
        return all(map(_is_announced, self.fleet.servers[server].copies.values()))

    def weighed(self, server: str, held_bytes: int) -> None:
        """All that is there holds so much together: what is more than was thought is the lot of those whose owners declare nothing."""
        copies = [copy for copy in self.fleet.servers[server].copies.values() if not copy.is_step]
        if any(copy.state is not ModelState.READY for copy in copies):
            return
        grown = held_bytes - sum(copy.bytes for copy in copies)
        undeclared = [facts for copy in copies if (facts := self.fleet.models.get(copy.model)) and facts.spec.resident_bytes is None]
        thought = sum(facts.resident_bytes for facts in undeclared)
        if grown > 0 and thought > 0:
            for facts in undeclared:
                facts.resident_bytes += int(grown * facts.resident_bytes / thought)
                self._measured.add(facts.name)

    def changed(self) -> None:
        """Wake whoever waits."""
        self._change.set()
        self._room.set()

    def released(self) -> None:
        """Wake whoever waits for room: not the many who may wait for a load, at every request of others."""
        self._room.set()

    async def wait_for_change(self, timeout_s: float, *, for_room: bool = False) -> None:
        """Return when something has changed, with `for_room` also when a request has ended, or the time is over."""
        event = self._room if for_room else self._change
        event.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return
