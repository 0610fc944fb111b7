"""The owner's picture of its fleet, kept right as requests come and go: `fleet/domain/fleet.Fleet`, which policies decide by."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from control_plane.core.model import ModelState, ModelVersion
from control_plane.fleet.domain.counts import FleetCounts
from control_plane.fleet.domain.demand import after_use
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import Copy, Fleet, ModelFacts, Server
from control_plane.fleet.domain.load_plan import states_of
from control_plane.fleet.domain.memory import Measured, Wish
from control_plane.fleet.view.claims import Claim
from control_plane.fleet.view.events import FleetEvents
from control_plane.fleet.view.measurements import FIRST_LOAD_S, PROCESS_BYTES, Measurements
from control_plane.fleet.view.model_specs import ModelSpecs
from control_plane.models.domain.description import DescribedModel, Tier
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import Servers

_NAMED = 5
"""Of the models that a server has taken with it: there may be hundreds."""

NO_BUDGET = 2**62
"""More than anybody has."""


class Tiers(Protocol):
    """`models/tiers/model_tiers`."""

    def tier_of(self, model: str) -> Tier:
        """WARM, or COLD where it has to be fetched first."""

    def expected_fetch_s(self, model: str) -> float:
        """What that would take now."""


def _is_announced(copy: Copy) -> bool:
    return copy.state is ModelState.LOADING and copy.bytes == 0 and not copy.is_step


def _shown(server: Server) -> dict[str, tuple[Copy, ModelState]]:
    return {name: (copy, copy.state) for name, copy in server.copies.items()}


class FleetState:
    """The fleet's servers, copies and claims as the owner sees them."""

    def __init__(
        self,
        servers: Servers,
        *,
        budget_bytes: int,
        now_s: Callable[[], float] = time.monotonic,
        today_s: Callable[[], float] = time.time,
        counts: FleetCounts | None = None,
        logs: bool = False,
    ) -> None:
        """`now_s` is the loop's time, `today_s` seconds since 1970. With `logs` this process says what happens to servers."""
        self.now_s = now_s
        self.fleet = Fleet()
        self.counts = counts or FleetCounts()
        self.events = FleetEvents(self.counts, today_s=today_s, logs=logs)
        for name in servers.members:
            self.fleet.add_server(Server(name, budget_bytes, is_up=False))
        self.described: Mapping[str, DescribedModel] = {}
        self.measurements = Measurements(self.fleet, now_s=now_s, today_s=today_s)
        self._specs = ModelSpecs()
        self._tiers: Tiers | None = None
        self.settling: set[tuple[str, str]] = set()
        """By server, models that count as LOADING whatever Triton says: not all know yet what their answers are made of."""
        self.listed: dict[str, set[str]] = {}
        """By server, all that its Triton could load."""
        self._lost_s: dict[str, float] = {}
        """Since when, by server, of those that went down by themselves and are not back yet."""
        self.ejected_here: frozenset[str] = frozenset()
        """Servers, by what this process's own requests have shown."""
        self.ejected_elsewhere: dict[str, frozenset[str]] = {}
        """The same of other processes, by process."""
        self.uses: Counter[str] = Counter()
        """Requests by model that `fleet/ownership/reports` has not told of yet."""
        self._servers = servers
        self._change = asyncio.Event()
        self._room = asyncio.Event()
        servers.follow(self)

    def join(self, server: Server) -> None:
        """It is one of the fleet's from now on, and down until it is said to be up."""
        self.fleet.add_server(server)

    # `triton/servers.Follower`

    def up(self, upstream: Upstream, server: str) -> None:
        """It counts as up once it has been looked at (`observe`): what is there is not known before."""
        if (since_s := self._lost_s.pop(server, None)) is not None:
            self.events.tell(FleetEventKind.UP, server=server, seconds=self.now_s() - since_s)

    def down(self, reason: str, server: str) -> None:
        """What was there is gone, and the state of sequences with it; what is loaded when it comes back is another copy."""
        at = self.fleet.servers[server]
        if self._servers.members[server].is_lost and server not in self._lost_s:
            self._tell_lost(at, reason)
        at.is_up, at.work_s = False, 0.0
        for model in list(at.copies):
            self.fleet.drop_copy(at, model)
        self.changed()

    def _tell_lost(self, server: Server, reason: str) -> None:
        self._lost_s[server.name] = self.now_s()
        lost = sorted(copy.model for copy in server.copies.values() if copy.state is ModelState.READY and not copy.is_step)
        self.counts.events[FleetEventKind.LOST] += len(lost)
        more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
        with_it = f"; with it {', '.join(lost[:_NAMED])}{more}" if lost else ""
        self.events.tell(FleetEventKind.DOWN, server=server.name, reason=f"{reason}{with_it}")

    def left(self, server: str) -> None:
        self._lost_s.pop(server, None)
        self.fleet.remove_server(server)
        self.listed.pop(server, None)
        self.changed()

    def pin(self, model: str, min_copies: int) -> None:
        """Keep so many copies of it loaded while this process runs, if no administrator says otherwise."""
        self._specs.pins[model] = min_copies
        self._specify(model)

    def follow(self, wishes: Mapping[str, Wish]) -> None:
        """What administrators want from now on."""
        before, self._specs.wishes = self.wishes, wishes
        for model in before.keys() | wishes.keys():
            if before.get(model) != wishes.get(model):
                self._specify(model)
        self.changed()

    @property
    def wishes(self) -> Mapping[str, Wish]:
        return self._specs.wishes

    def is_withdrawn(self, model: str) -> bool:
        """Whether an administrator has unloaded it: it is loaded for nobody."""
        return self._specs.is_withdrawn(model)

    def _specify(self, model: str) -> None:
        if model in self.fleet.models and model in self.described:
            self.fleet.models[model].spec = self._specs.of(self.described[model])

    def describe(self, described: Mapping[str, DescribedModel], tiers: Tiers | None = None) -> None:
        """What models there are, as their folders say, and in `tiers` where those are. What has been measured of them stands."""
        self.described, self._tiers = described, tiers
        for name, model in described.items():
            self._describe(name, model)
        for name in self.fleet.models.keys() - described.keys():
            if name not in self.fleet.holders:
                del self.fleet.models[name]

    def _describe(self, name: str, model: DescribedModel) -> None:
        facts = self.fleet.models.get(name)
        if facts is None:
            service_s = self.measurements.first_service_s(name)
            facts = self.fleet.models[name] = ModelFacts(model.spec, 0, load_s=FIRST_LOAD_S, service_s=service_s)
            self.measurements.quarantine(facts)
        facts.spec = self._specs.of(model)
        facts.tier = Tier.WARM if self._tiers is None else self._tiers.tier_of(name)
        fetch_s = 0.0 if self._tiers is None else self._tiers.expected_fetch_s(name)
        self.measurements.describe(facts, model, fetch_s=fetch_s)

    def recall(self, measured: Mapping[str, Measured | None]) -> None:
        """What other processes, or an earlier life of this one, have found of models; None: it is forgotten."""
        for name, known in measured.items():
            self.measurements.recall(name, known)
            if name in self.described:
                self._describe(name, self.described[name])

    def observe(self, server: str, index: Iterable[ModelVersion]) -> None:
        """What Triton says of itself; a copy that is only announced is not in its index yet."""
        fleet, at, now_s = self.fleet, self.fleet.servers.get(server), self.now_s()
        if at is None or not self._servers.members[server].is_up:  # it has left or gone down while it was asked
            return
        was_up, at.is_up = at.is_up, True
        index = list(index)
        self.listed[server] = {line.name for line in index}
        found, before = states_of(index), _shown(at)
        steps = {step for name in found for step in self.steps_of(name)}
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
        if not was_up or _shown(at) != before:  # looks are many while somebody waits, and so may be those who do
            self.changed()

    def live(self) -> set[str]:
        """Servers that can be looked at."""
        return self.fleet.servers.keys() & self._servers.live.keys()

    def bytes_of(self, server: str, model: str) -> int:
        """What it takes there; an ensemble's steps are counted with it."""
        copy = self.fleet.servers[server].copies.get(model)
        if copy is not None and copy.is_step:
            return 0
        facts = self.fleet.models.get(model)
        return PROCESS_BYTES if facts is None else facts.resident_bytes

    def has_sequences(self, model: str) -> bool:
        """Whether its copies hold what requests of a sequence have in common; not known of models that have no folder here."""
        described = self.described.get(model)
        return described is not None and described.has_sequences

    def steps_are_its_own(self, server: str, model: str) -> bool:
        """Whether an ensemble may take its steps along when it goes: no other that is there needs them."""
        steps = self.steps_of(model)
        others = {step for other in self.fleet.servers[server].copies if other != model for step in self.steps_of(other)}
        return bool(steps) and steps.isdisjoint(others)

    def steps_of(self, model: str) -> frozenset[str]:
        """The models that an ensemble needs, as far as its folder is here."""
        described = self.described.get(model)
        return frozenset() if described is None else described.steps

    def _load_s(self, model: str) -> float:
        facts = self.fleet.models.get(model)
        return FIRST_LOAD_S if facts is None else facts.load_s

    def claim(self, model: str, server: str) -> Claim | None:
        """A place at a copy that is ready; None: there is none, or the server is down."""
        at = self.fleet.servers.get(server)
        copy = None if at is None else at.copies.get(model)
        if at is None or copy is None or copy.state is not ModelState.READY or not self._servers.members[server].is_up:
            return None
        return Claim(self, self._servers.of(server), at, copy, self.fleet.models[model])

    def used(self, model: str, count: int = 1, *, is_to_be_told: bool = True) -> None:
        """So many requests for it have come, of which the owner may have been told already."""
        after_use(self.fleet.models[model], self.now_s(), count)
        if is_to_be_told:
            self.uses[model] += count

    def is_empty(self, server: str) -> bool:
        """Whether nothing is there but what is announced."""
        return all(map(_is_announced, self.fleet.servers[server].copies.values()))

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
