"""Gateways' rollouts on a state store that they share, with a clock that stands still unless it is moved."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from control_plane.inference.domain.observation import Observation, Pair
from control_plane.objects.domain.rollout import Rollout
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.stored import Kind
from control_plane.objects.domain.stored_objects import to_body
from control_plane.objects.mirror import ObjectMirror
from control_plane.objects.objects import Objects
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.rollout.contracts import ContractReader
from control_plane.rollout.rollouts import Rollouts, RolloutSpec
from control_plane.rollout.shared_evidence import SharedEvidence
from control_plane.triton.ports import Upstream
from tests.fakes import FakeHttp, FakeUpstream
from tests.fakes.rollout_steps import steps_of
from tests.fakes.stores.evidence_board import FakeEvidenceBoard
from tests.fakes.stores.state_store import FakeState, FakeStateStore

SPEC = RolloutSpec("v2", steps_of([1, 10, 50], samples=20, min_s=30.0))
Y = {"name": "Y", "data_type": "TYPE_FP32", "dims": [4]}
CONFIGS: dict[str, Any] = {
    "v1": {"output": [Y], "version_policy": {"specific": {"versions": ["1", "2"]}}},
    "v2": {"output": [Y]},
    "cached": {"output": [Y], "response_cache": {"enable": True}},
    "decoupled": {"output": [Y], "model_transaction_policy": {"decoupled": True}},
    "other": {"output": [{**Y, "dims": [8]}]},
}
VERSIONS = {"v1": ["1", "2"]}


def triton(request: HttpRequest) -> HttpAnswer:
    parts = request.target.decode().split("/")
    config, versions = CONFIGS.get(parts[3]), VERSIONS.get(parts[3], ["1"])
    if config is None or (parts[4:5] == ["versions"] and parts[5] not in versions):
        return make_answer(404, b"{}")
    return make_answer(200, json.dumps(config if parts[-1] == "config" else {"name": parts[3], "versions": versions}).encode())


@dataclass
class FakeCopies:
    """A fleet with so many ready copies of each model, and room for so many of each."""

    there: dict[str, int]
    room: int = 100
    kept: list[dict[str, int]] = field(default_factory=list)

    def keep(self, wanted: Mapping[str, int]) -> None:
        if not self.kept or self.kept[-1] != wanted:
            self.kept.append(dict(wanted))

    def ready(self, model: str) -> int:
        return self.there.get(model, 0)

    def why_no_room(self, model: str, count: int, stay: Mapping[str, int]) -> str:
        return "" if count <= self.room else f"there is no room for both: {count} of {model} beside {dict(stay)}"


@dataclass
class Process:
    """One gateway's rollouts, on a store that it shares with others."""

    state: FakeState
    clock: list[float]
    token: int | None = 0
    board: FakeEvidenceBoard | None = None
    copies: FakeCopies | None = None
    name: str = "one"
    seen: list[Observation] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = FakeStateStore(self.state)
        self.known = ObjectMirror(self.store, now_s=lambda: self.clock[0])
        upstream = FakeUpstream(http=FakeHttp(answer=triton))

        async def reading(model: str) -> Upstream:
            return upstream

        self.shared = None
        if self.board is not None:
            self.shared = SharedEvidence(self.board, self.known, process=self.name, now_s=lambda: self.clock[0])
        self.rollouts = Rollouts(
            Objects(self.store),
            self.known,
            ContractReader(reading),
            shared=self.shared,
            copies=self.copies,
            fencing_token=lambda: self.token,
            now_s=lambda: self.clock[0],
        )
        self.rollouts.sources.append(self._take)
        self.rollouts.on_given_up = self.given_up.append

    def _take(self) -> list[Observation]:
        taken, self.seen = self.seen, []
        return taken

    def pair(self, count: int, *, faults: bool = False, differs: bool | None = None) -> None:
        """So many copied requests, of the rollouts in their shadow."""
        for name, rollout in self.known.shadows.items():
            for number in range(count):
                digest = hash((self.clock[0], number, 3)) % 2**64
                self.seen.append(Observation(name, rollout.id, False, digest, faults, 0.01, pair=Pair(False, differs)))

    def serve(self, count: int, *, faults: bool = False) -> None:
        """So many requests at each arm, as far as there is a rollout."""
        for name, rollout_id in self.known.rollout_ids.items():
            for number in range(count):
                self.seen.append(Observation(name, rollout_id, True, hash((self.clock[0], number, 1)) % 2**64, False, 0.01))
                self.seen.append(Observation(name, rollout_id, False, hash((self.clock[0], number, 2)) % 2**64, faults, 0.01))

    async def tick(self, *, after_s: float = 10.0, count: int = 10, faults: bool = False) -> None:
        self.clock[0] += after_s
        await self.known.start()
        self.serve(count, faults=faults)
        await self.rollouts.tick()
        await self.known.start()

    async def start(self, spec: RolloutSpec = SPEC) -> Rollout:
        await self.known.start()
        started = (await refreshing(self, self.rollouts.start("r", spec))).value
        assert isinstance(started, Rollout)
        await self.known.start()
        return started

    @property
    def rollout(self) -> Rollout:
        return self.known.rollouts["r"]

    @property
    def weights(self) -> tuple[str, int]:
        route = self.known.routes["r"]
        return route.model, sum(target.weight for target in route.targets)


async def refreshing(process: Process, change: Any) -> Any:
    """Await a change while the mirror follows the store."""
    following = asyncio.get_running_loop().create_task(process.known.run())
    try:
        return await change
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def world(*routes: Route) -> FakeState:
    state = FakeState()
    for route in routes or (Route("r", "v1"),):
        state.write(Kind.ROUTE, route.name, to_body(route))
    return state


def process(**how: Any) -> Process:
    return Process(how.pop("state", None) or world(), how.pop("clock", None) or [1000.0], **how)
