from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.core.infer_call import Frontend, Outcome
from control_plane.fleet.domain.counts import Hedge
from control_plane.objects.domain.route import HedgingPolicy
from control_plane.triton.ports import CANCEL_AFTER_S
from tests.unit.fleet.routing.hedging_bench import PAUSE_S, REPEATABLE, SPEC, USUAL_S, Broken, Spent, Telling, serving, straggling, took_s

pytestmark = pytest.mark.virtual_time


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


async def test_both_servers_are_told_how_much_time_is_left() -> None:
    async with serving() as service:
        await service.learn()
        service.tritons.told.clear()
        service.inference.time_left = Telling()  # type: ignore[assignment]
        straggling(service)
        await service.ask()
        assert service.tritons.told == [True, True]


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


async def test_a_replica_in_doubt_is_probed_again_after_a_probe_that_lost_against_its_hedge() -> None:
    async with serving(servers=2) as service:
        await service.learn()
        state, now_s = service.bench.state, service.bench.now_s
        failed = state.reserve("a", "s0")
        assert failed is not None
        failed.release(answered=False)
        state.doubts.doubt(failed, now_s(), at_once=True)
        straggling(service)
        assert await service.ask() == "s1"
        assert service.tritons.sent == ["s0", "s1"]
        assert service.hedges == {Hedge.WON: 1}
        for _ in range(5):
            await asyncio.sleep(1.0)
            await service.ask()
        assert service.tritons.sent.count("s0") > 1
        assert state.doubts.avoided("a") == frozenset()


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


async def test_work_that_callers_interrupt_is_not_hedged_and_says_nothing_of_their_times() -> None:
    async def is_preempted(model: str) -> bool:
        return True

    async with serving() as service:
        await service.learn()
        facts, callers = service.bench.state.fleet.models["a"], service.inference
        facts.service_s = USUAL_S
        governed = callers._governance
        service.inference = callers.governed_by(replace(governed, admission=governed.admission.in_background(is_preempted)))
        for _ in range(100):
            straggling(service)
            await service.ask()
            await asyncio.sleep(1.0)
        assert len(service.tritons.sent) == 100
        assert facts.service_s == USUAL_S
        service.inference = callers
        straggling(service)
        _, in_s = await took_s(service)
        assert in_s < 3 * USUAL_S


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
