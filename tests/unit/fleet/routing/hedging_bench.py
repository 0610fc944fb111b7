"""A fleet whose servers straggle when they are told to, with hedging."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from control_plane.admission.permit import Permit
from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.core.infer_call import Frontend
from control_plane.core.principal import Principal
from control_plane.core.scope import Scopes, parse_scope
from control_plane.inference.inference import InferenceService
from control_plane.objects.domain.route import HedgingPolicy, Route
from control_plane.objects.domain.tenant import Tenant
from control_plane.triton.ports import CANCEL_AFTER_S, Slot, Upstream
from tests.fakes import FakeRecorder
from tests.fakes.governance import FakeCosts, FakeMeter, governance, known_state
from tests.unit.fleet.fleet_bench import READY, FleetBench, model, running
from tests.unit.inference.governed_bench import Request

USUAL_S, PAUSE_S = 0.01, 0.2


TEAM = Principal("team", "k1", Scopes((parse_scope("infer:*"),)))


class Telling:
    """`inference/model_configuration/time_left.TimeLeft` of models that all want to know."""

    def may_be_wanted(self, model: str) -> bool:
        return True

    def tell(self, permit: Permit, model: str) -> None:
        permit.tells_time_left = True


class Broken(UpstreamUnavailable):
    """A connection that breaks off when the request is late."""

    def __init__(self) -> None:
        super().__init__("broken off")


@dataclass
class Tritons:
    """What servers do with the requests that they are sent, in that order: they take so long, or fail; a list that is
    used up stands for the usual time."""

    plans: list[float | Exception] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    told: list[bool] = field(default_factory=list)
    """Whether each send tells how much time its request has left."""
    ended: list[tuple[str, float]] = field(default_factory=list)
    """Server and time of each send that came to its end; others were cancelled."""

    def plan(self) -> float | Exception:
        return self.plans.pop(0) if self.plans else USUAL_S


class Hedged(Request):
    """Request that servers compute as long as planned, whose answer is the server's name. Over gRPC a loser is cancelled
    after `CANCEL_AFTER_S`, over HTTP computed to its end, as `triton/adapters` do it."""

    slot: Slot | None = None

    def __init__(self, bench: FleetBench, tritons: Tritons, *, frontend: Frontend, name: str, timeout_s: float) -> None:
        super().__init__(TEAM, timeout_s=timeout_s)
        self.name, self.frontend = name, frontend
        self._names = {bench.servers.get(each): each for each in bench.tritons}
        self._tritons = tritons

    def send(self, server: Upstream, *, timeout_s: float) -> Any:
        return self._compute(self._names[server], timeout_s, self.slot)

    def readdress(self, model_name: str, model_version: str) -> None:
        self.name = model_name

    async def _compute(self, server: str, timeout_s: float, slot: Slot | None) -> str:
        loop = asyncio.get_running_loop()
        self._tritons.sent.append(server)
        self._tritons.told.append(slot is not None and slot.tells_time_left)
        plan = self._tritons.plan()
        if isinstance(plan, Exception):
            await asyncio.sleep(1.5 * USUAL_S if isinstance(plan, Broken) else USUAL_S)
            raise plan
        ends_s = loop.time() + plan
        try:
            await asyncio.sleep(min(plan, timeout_s))
        except asyncio.CancelledError:
            assert slot is not None
            slot.keep()
            cancelled_s = loop.time() + (CANCEL_AFTER_S if slot.is_superfluous and self.frontend is Frontend.GRPC else 1.0)
            loop.call_at(min(ends_s, cancelled_s), slot.let_go)
            raise
        if plan > timeout_s:
            raise DeadlineExceeded("too late")
        self._tritons.ended.append((server, loop.time()))
        return server


@dataclass
class Service:
    """A fleet with a model that is ready everywhere."""

    bench: FleetBench
    inference: InferenceService
    meter: FakeMeter
    costs: FakeCosts
    tritons: Tritons = field(default_factory=Tritons)
    frontend: Frontend = Frontend.GRPC

    async def ask(self, name: str = "a", *, timeout_s: float = 5.0) -> Any:
        request = Hedged(self.bench, self.tritons, frontend=self.frontend, name=name, timeout_s=timeout_s)
        return await self.inference.infer(request)  # type: ignore[arg-type]

    async def learn(self, requests: int = 400, *, part: float = 0.01) -> None:
        """Have the model show that one request in so many straggles."""
        for number in range(requests):
            self.tritons.plans = [USUAL_S + PAUSE_S] if part and number % int(1 / part) == 0 else []
            await self.ask()
            await asyncio.sleep(2 * PAUSE_S if number % 100 == 0 else 0.001)
        await asyncio.sleep(2.0)  # until no server counts as busy with what was cancelled
        self.tritons.sent.clear()
        self.tritons.ended.clear()
        self.hedges.clear()

    @property
    def slots_are_idle(self) -> bool:
        return self.inference._governance.admission.slots.of("a").are_idle

    @property
    def hedges(self) -> Any:
        return self.bench.state.counts.hedges

    def in_flight(self, name: str = "a") -> dict[str, int]:
        return {server: self.bench.replica(name, server).in_flight for server in self.bench.tritons}


SPEC = model("a", min_replicas=3)


REPEATABLE = replace(SPEC, spec=replace(SPEC.spec, is_repeatable=True))


@asynccontextmanager
async def serving(
    *, described: Any = REPEATABLE, servers: int = 3, policy: HedgingPolicy | None = None, is_on: bool = True
) -> AsyncIterator[Service]:
    loop = asyncio.get_running_loop()
    async with running(FleetBench(described, servers=servers)) as bench, bench.dispatch.hedging.tasks.open():
        bench.dispatch.hedging._is_on = is_on
        bench.dispatch.hedging._budget = Ample()  # type: ignore[assignment]
        for name, triton in bench.tritons.items():
            triton.states["a"] = READY
            await bench.loads[name].poll_index()
        meter, costs = FakeMeter(), FakeCosts()
        routes = () if policy is None else (Route("by-route", "a", hedging=policy),)
        rights = governance(
            known_state(tenants=(Tenant("team"),), routes=routes), authentication=True, meter=meter, costs=costs, now_s=loop.time,
            max_in_flight_per_model=256,
        )  # fmt: skip
        inference = InferenceService(
            servers=bench.servers, recorder=FakeRecorder(), governance=rights, default_timeout_s=30.0,
            dispatch=bench.dispatch, now_s=loop.time,
        )  # fmt: skip
        yield Service(bench, inference, meter, costs)
        await asyncio.sleep(5.0)  # whatever is late ends
        assert {bench.state.fleet.servers[each].work_s for each in bench.tritons} == {0.0}
        assert all(replica.in_flight == 0 for server in bench.state.fleet.servers.values() for replica in server.replicas.values())


async def took_s(service: Service, name: str = "a", *, timeout_s: float = 5.0) -> tuple[Any, float]:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    return await service.ask(name, timeout_s=timeout_s), loop.time() - began_s


def straggling(service: Service, first: float | Exception = USUAL_S + PAUSE_S, second: float | Exception = USUAL_S) -> None:
    """The next request takes longer where it is sent first."""
    service.tritons.plans = [first, second]


class Ample:
    def try_spend(self, units: float, kind: object) -> bool:
        return True


class Spent:
    def try_spend(self, units: float, kind: object) -> bool:
        return False
