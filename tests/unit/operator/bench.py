"""The controller over a fleet with fake Tritons: its fake resources, and what runs it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from control_plane.admin.declared.kinds import KINDS
from control_plane.admin.declared.service import Declared
from control_plane.audit.domain.entry import Actor
from control_plane.audit.trail import AuditTrail
from control_plane.core.errors import InvalidRequest, StoreUnavailable
from control_plane.fleet.domain.memory import DesiredState
from control_plane.objects.objects import Objects
from control_plane.operator.controller import OWNER, ModelController
from tests.fakes.stores.audit_log import FakeAuditLog
from tests.fakes.stores.state_store import FakeStateStore
from tests.unit.fleet.fleet_bench import FleetBench, model, running

MODEL = KINDS["Model"]


@dataclass
class FakeResources:
    """In-memory `operator/ports.ModelResources`."""

    objects: dict[str, dict[str, Any]] | None = field(default_factory=dict)
    written: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    is_away: bool = False
    changes_meanwhile: bool = False
    rejects: str = ""
    """Name of a resource whose status is not taken."""
    looks: int = 0
    _version: int = 0
    _on_change: Callable[[], None] = lambda: None

    def apply(self, name: str, **spec: object) -> None:
        assert self.objects is not None
        before = self.objects.get(name)
        self._version += 1
        metadata = {"name": name, "uid": f"uid of {name}", "generation": 1, "creationTimestamp": f"{self._version:03d}"}
        if before is not None:
            metadata = {**before["metadata"], "generation": before["metadata"]["generation"] + 1}
        self.objects[name] = {"metadata": metadata, "spec": spec, "status": (before or {}).get("status")}
        self._on_change()

    def delete(self, name: str) -> None:
        assert self.objects is not None
        del self.objects[name]
        self._on_change()

    def listed(self) -> list[Mapping[str, Any]] | None:
        self.looks += 1
        return None if self.objects is None else list(self.objects.values())

    def follow(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change

    async def put_status(self, it: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
        if self.is_away:
            raise StoreUnavailable("the API server is away")
        assert self.objects is not None
        if self.changes_meanwhile:
            return False
        name = it["metadata"]["name"]
        if name == self.rejects:
            raise InvalidRequest("422 spec is of before")
        self.written.append((name, status))
        self.objects[name] = {**self.objects[name], "status": json.loads(json.dumps(status))}
        self._on_change()
        return True

    async def run(self) -> None:
        await asyncio.Event().wait()

    def conditions(self, name: str) -> dict[str, str]:
        """Condition -> reason."""
        assert self.objects is not None
        return {each["type"]: each["reason"] for each in (self.objects[name]["status"] or {}).get("conditions", ())}

    def message(self, name: str) -> str:
        assert self.objects is not None
        return str(self.objects[name]["status"]["conditions"][0]["message"])


@dataclass
class Turns:
    """How often something is done before anybody else gets his turn of the event loop."""

    most: int = 0
    _now: int = 0

    def note(self) -> None:
        if not self._now:
            asyncio.get_running_loop().call_soon(self._others)
        self._now += 1
        self.most = max(self.most, self._now)

    def _others(self) -> None:
        self._now = 0


@dataclass
class Bench:
    fleet: FleetBench
    resources: FakeResources
    store: FakeStateStore
    log: FakeAuditLog
    is_leader: bool = True
    turns: Turns = field(default_factory=Turns)
    """Turns in which resources are applied, and statuses written."""

    def leads(self) -> bool:
        self.turns.note()
        return self.is_leader

    @property
    def desired(self) -> Mapping[str, DesiredState]:
        return self.fleet.models.desired

    def declared(self, who: str) -> Declared:
        return Declared(Objects(self.store), self.fleet.models, AuditTrail(self.log), Actor(who))

    async def apply_as(self, owner: str, name: str, **spec: object) -> None:
        await self.declared(owner).apply(MODEL, name, spec, owner=owner, force=False, dry_run=False)

    @property
    def changes(self) -> list[tuple[str, str, str]]:
        return [(each.change.who, each.change.action, each.change.name) for each in self.log.entries]


@asynccontextmanager
async def bench(*names: str, servers: int = 2, turn_s: float = 0.0) -> AsyncIterator[Bench]:
    """`names` are the fleet's models, if not its usual ones; `turn_s` is what a turn of the controller takes by its clock."""
    it = Bench(FleetBench(*(model(name, 0) for name in names), servers=servers), FakeResources(), FakeStateStore(), FakeAuditLog())
    clock = count()
    controller = ModelController(
        it.resources,
        it.declared(OWNER),
        it.fleet.models,
        is_leader=it.leads,
        now=lambda: f"{asyncio.get_running_loop().time():g}",
        clock_s=lambda: turn_s * next(clock),
    )
    async with running(it.fleet, reconciles=True, remembers=True):
        task = asyncio.get_running_loop().create_task(controller.run())
        try:
            yield it
            assert not task.done(), "the controller has ended"
        finally:
            task.cancel()
            await asyncio.wait([task])
