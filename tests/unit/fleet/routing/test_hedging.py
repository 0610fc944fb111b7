from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.core.infer_call import Frontend, Outcome
from control_plane.core.principal import Principal
from control_plane.core.scope import Scopes, parse_scope
from control_plane.fleet.domain.counts import Hedge
from control_plane.inference.inference import InferenceService
from control_plane.objects.domain.route import HedgingPolicy, Route
from control_plane.objects.domain.tenant import Tenant
from control_plane.triton.ports import CANCEL_AFTER_S, Slot, Upstream
from tests.fakes import FakeRecorder
from tests.fakes.governance import FakeCosts, FakeMeter, governance, known_state
from tests.unit.fleet.fleet_bench import READY, FleetBench, model, running
from tests.unit.inference.test_inference_governed import Request

pytestmark = pytest.mark.virtual_time

USUAL_S, PAUSE_S = 0.01, 0.2
TEAM = Principal("team", "k1", Scopes((parse_scope("infer:*"),)))


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

    async def learn(self, requests: int = 400, *, part: float = 0.01, more_s: float = PAUSE_S) -> None:
        """Have the model show that one request in so many straggles."""
        for number in range(requests):
            self.tritons.plans = [USUAL_S + more_s] if part and number % int(1 / part) == 0 else []
            await self.ask()
            await asyncio.sleep(2 * more_s if number % 100 == 0 else 0.001)
        await asyncio.sleep(2.0)  # until no server counts as busy with what was cancelled
        self.tritons.sent.clear()
        self.tritons.ended.clear()
        self.hedges.clear()

    @property
    def slots_are_idle(self) -> bool:
        return self.inference._governance.admission.slots("a").are_idle

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


@pytest.mark.parametrize("frontend", [Frontend.GRPC, Frontend.HTTP])
async def test_a_late_request_is_answered_by_another_server(frontend: Frontend) -> None:
    async with serving() as service:
        service.frontend = frontend
        await service.learn()
        straggling(service)
        answer, in_s = await took_s(service)
        first, second = service.tritons.sent
        assert first != second == answer
        assert in_s < 3 * USUAL_S
        assert service.hedges == {Hedge.WON: 1}


async def test_a_request_that_is_not_late_is_sent_once() -> None:
    async with serving() as service:
        await service.learn()
        for _ in range(100):
            await service.ask()
        assert len(service.tritons.sent) == 100
        assert not service.hedges


async def test_a_model_without_stragglers_is_not_hedged() -> None:
    async with serving() as service:
        await service.learn(part=0.0)
        straggling(service)
        await service.ask()
        assert len(service.tritons.sent) == 1


async def test_the_first_server_may_win_after_all() -> None:
    async with serving() as service:
        await service.learn()
        straggling(service, 1.6 * USUAL_S)
        answer = await service.ask()
        first, _ = service.tritons.sent
        assert answer == first
        assert service.hedges == {Hedge.LOST: 1}


async def test_a_cancelled_loser_holds_its_server_until_that_answers_again_but_no_slot_of_its_model() -> None:
    async with serving() as service:
        await service.learn()
        straggling(service, 60.0)
        await service.ask()
        late, *_ = service.tritons.sent
        assert {name: count for name, count in service.in_flight().items() if count} == {late: 1}
        assert service.slots_are_idle
        await asyncio.sleep(CANCEL_AFTER_S + 0.01)  # it is cancelled: who knows when the model stops
        assert late not in {await service.ask() for _ in range(3)}
        assert service.in_flight()[late] == 1
        await asyncio.sleep(2 * CANCEL_AFTER_S)  # as long again as it had taken
        assert service.in_flight()[late] == 0


async def test_a_server_that_answers_again_is_free() -> None:
    async with serving(servers=2) as service:
        await service.learn()
        straggling(service, 60.0)
        await service.ask()
        await asyncio.sleep(CANCEL_AFTER_S + 0.01)
        assert sum(service.in_flight().values()) == 1
        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(service.ask())
        assert service.in_flight() == {"s0": 0, "s1": 0}


async def test_over_http_a_loser_holds_its_server_until_triton_has_ended_it() -> None:
    async with serving() as service:
        service.frontend = Frontend.HTTP
        await service.learn()
        straggling(service)
        await service.ask()
        late, _ = service.tritons.sent
        await asyncio.sleep(PAUSE_S - 3 * USUAL_S)
        assert service.in_flight()[late] == 1
        await asyncio.sleep(3 * USUAL_S)
        assert service.in_flight()[late] == 0


async def test_losers_say_nothing_of_service_times_outliers_or_demand() -> None:
    async with serving() as service:
        await service.learn()
        service.bench.state.take_uses()
        facts = service.bench.state.fleet.models["a"]
        facts.service_s = USUAL_S
        for number in range(400):
            if number % 100 == 0:
                await asyncio.sleep(1.0)
                straggling(service)
            await service.ask()
        assert service.hedges == {Hedge.WON: 4}
        assert facts.service_s < 1.2 * USUAL_S
        assert service.bench.state.take_uses() == {"a": 400}
        service.bench.state.ejection.judge()
        assert not service.bench.state.ejection.by_us


async def test_the_caller_is_charged_once_for_the_server_that_answered() -> None:
    async with serving() as service:
        await service.learn()
        seen = len(service.meter.events)
        straggling(service)
        answer = await service.ask()
        (event,) = service.meter.events[seen:]
        assert (event.server, event.outcome) == (answer, Outcome.ANSWERED)
        await asyncio.sleep(2.0)
        assert len(service.meter.events) == len(service.meter.added) == seen + 1


@pytest.mark.parametrize(
    "failure", [UpstreamUnavailable("gone", is_not_sent=True), UpstreamUnavailable("broken off"), DeadlineExceeded("late")]
)
async def test_a_hedge_that_fails_leaves_the_first_answer(failure: Exception) -> None:
    async with serving(servers=2) as service:
        await service.learn()
        straggling(service, second=failure)
        answer, in_s = await took_s(service)
        first, second = service.tritons.sent
        assert answer == first
        assert in_s == pytest.approx(USUAL_S + PAUSE_S)
        assert service.hedges == {Hedge.LOST: 1}
        assert service.bench.server(second).is_ejected is isinstance(failure, UpstreamUnavailable)


async def test_a_first_server_that_fails_late_leaves_the_hedges_answer() -> None:
    async with serving(servers=2) as service:
        await service.learn()

        straggling(service, Broken())
        answer = await service.ask()
        first, second = service.tritons.sent
        assert answer == second
        assert service.bench.server(first).is_ejected


async def test_a_request_under_which_two_servers_died_goes_to_no_third() -> None:
    async with serving(servers=3) as service:
        await service.learn()
        straggling(service, Broken(), Broken())
        with pytest.raises(UpstreamUnavailable):
            await service.ask()
        assert len(service.tritons.sent) == 2
        assert service.hedges == {Hedge.FAILED: 1}


async def test_without_an_answer_in_time_the_caller_is_told_so_and_no_server_is_held() -> None:
    async with serving(servers=2) as service:
        await service.learn()
        straggling(service, 60.0, 60.0)
        with pytest.raises(DeadlineExceeded):
            await service.ask(timeout_s=0.5)
        assert service.hedges == {Hedge.FAILED: 1}
        await asyncio.sleep(2.5)
        assert service.in_flight() == {"s0": 0, "s1": 0}


@pytest.mark.parametrize("leaves_after_s", [0.0, USUAL_S / 2, 1.5 * USUAL_S, 3 * USUAL_S])
async def test_a_caller_that_leaves_leaves_nothing_behind(leaves_after_s: float) -> None:
    """As soon as it is sent, before the hedge, and during it; its slots are kept while Triton goes on."""
    async with serving(servers=2) as service:
        await service.learn()
        straggling(service, PAUSE_S, PAUSE_S)
        asking = asyncio.get_running_loop().create_task(service.ask())
        await asyncio.sleep(leaves_after_s)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not service.slots_are_idle
        await asyncio.sleep(2 * PAUSE_S)
        assert service.slots_are_idle
        assert service.inference.in_flight == 0


async def test_no_hedge_goes_to_a_server_that_is_busy() -> None:
    async with serving(servers=2) as service:
        await service.learn()
        straggling(service, PAUSE_S, PAUSE_S)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(service.ask())
        assert sorted(service.tritons.sent) == ["s0", "s1"]
        assert service.hedges == {Hedge.NO_IDLE_SERVER: 2}


async def test_a_server_that_becomes_idle_later_gets_the_hedge() -> None:
    async with serving(servers=2) as service:
        await service.learn()
        service.tritons.plans = [60.0, 3 * USUAL_S]
        async with asyncio.TaskGroup() as tasks:
            late, other = (tasks.create_task(took_s(service)) for _ in range(2))
        assert late.result()[0] == other.result()[0]
        assert late.result()[1] < 7 * USUAL_S
        assert service.hedges == {Hedge.NO_IDLE_SERVER: 2, Hedge.WON: 1}


async def test_a_server_gets_the_hedge_as_soon_as_it_is_idle() -> None:
    """Looked for again after twice the time each time, it was found idle 0.1 s later: 2.1 s after the request was late."""

    async with serving(servers=2) as service:
        await service.learn()
        service.tritons.plans = [60.0, 1.2]
        async with asyncio.TaskGroup() as tasks:
            late, other = (tasks.create_task(took_s(service, timeout_s=90.0)) for _ in range(2))
        assert late.result()[0] == other.result()[0]
        assert late.result()[1] < 1.2 + 2 * USUAL_S
        assert not service.bench.state.idle_waiters.models


async def test_no_hedge_is_sent_beyond_the_budget() -> None:
    async with serving() as service:
        await service.learn()
        service.bench.dispatch.hedging._budget = Spent()  # type: ignore[assignment]
        straggling(service)
        await service.ask()
        assert len(service.tritons.sent) == 1
        assert not service.hedges


class Ample:
    def try_spend(self, units: float, kind: object) -> bool:
        return True


class Spent:
    def try_spend(self, units: float, kind: object) -> bool:
        return False


@pytest.mark.parametrize(
    ("described", "frontend"),
    [
        pytest.param(SPEC, Frontend.GRPC, id="not marked repeatable"),
        pytest.param(replace(REPEATABLE, has_sequences=True), Frontend.GRPC, id="with sequences"),
        pytest.param(REPEATABLE, Frontend.GRPC_STREAM, id="out of a stream"),
    ],
)
async def test_what_is_never_hedged(described: Any, frontend: Frontend) -> None:
    async with serving(described=described) as service:
        service.frontend = frontend
        await service.learn()
        straggling(service)
        await service.ask()
        assert len(service.tritons.sent) == 1
        assert not service.hedges


@pytest.mark.parametrize(
    ("is_on", "policy", "hedged"),
    [
        pytest.param(False, None, False, id="off"),
        pytest.param(False, HedgingPolicy(is_on=True), True, id="off, but the route has it"),
        pytest.param(True, HedgingPolicy(is_on=False), False, id="on, but not for the route"),
        pytest.param(True, HedgingPolicy(), True, id="on, and the route follows"),
    ],
)
async def test_the_setting_and_the_route(is_on: bool, policy: HedgingPolicy | None, hedged: bool) -> None:
    async with serving(is_on=True, policy=policy) as service:
        await service.learn()
        service.bench.dispatch.hedging._is_on = is_on
        straggling(service)
        await service.ask("a" if policy is None else "by-route")
        assert (len(service.tritons.sent) == 2) is hedged


async def test_a_route_may_ask_for_two_servers_from_the_start() -> None:
    async with serving(policy=HedgingPolicy(twice_from_s=0.2), is_on=False) as service:
        service.costs.counted["a"] = 300.0
        service.bench.dispatch.hedging._budget = Spent()  # type: ignore[assignment]
        straggling(service, 0.5)
        answer, in_s = await took_s(service, "by-route")
        assert service.tritons.sent[1:] == [answer]
        assert in_s == pytest.approx(USUAL_S, abs=1e-3)
        service.costs.counted["a"] = 100.0
        await asyncio.sleep(1.0)
        await service.ask("by-route")
        assert len(service.tritons.sent) == 3


async def test_what_takes_long_at_one_server_goes_to_two_though_it_is_charged_less() -> None:
    async with serving(policy=HedgingPolicy(twice_from_s=0.2), is_on=False) as service:
        service.costs.counted["a"] = 300.0
        for number in range(300):
            service.tritons.plans = [0.5, 0.05] if number % 2 else [0.05, 0.5]
            await service.ask("by-route")
            await asyncio.sleep(1.0)
        service.costs.counted["a"] = 160.0  # the mean of what is answered, and of what is cancelled soon
        before = len(service.tritons.sent)
        await service.ask("by-route")
        assert len(service.tritons.sent) == before + 2


async def test_half_of_all_requests_are_hedged_and_nothing_is_left_over() -> None:
    async with serving(policy=HedgingPolicy(twice_from_s=0.001)) as service:
        for number in range(200):
            service.tritons.plans = [0.5] * (number % 2)
            await service.ask("by-route" if number % 2 else "a")
            await asyncio.sleep(0.2)
        await asyncio.sleep(3.0)
        assert service.hedges[Hedge.WON] + service.hedges[Hedge.LOST] == 100
        assert not service.bench.dispatch.hedging.lingering._held
