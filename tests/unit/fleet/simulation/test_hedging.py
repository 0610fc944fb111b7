"""Hedged requests in the simulator: cases worked out by hand, and what a straggling model's tail comes to.

Requests of the cases by hand go to two servers from the start, so that nothing has to be learned first.
"""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from control_plane.fleet.domain.counts import Hedge
from control_plane.fleet.domain.fleet import Fleet
from control_plane.fleet.simulation.engine import simulate
from control_plane.fleet.simulation.outcome import SimulationResult
from control_plane.fleet.simulation.production_router import ProductionRouter
from control_plane.fleet.simulation.router import LoadReplica
from control_plane.fleet.simulation.workload import FleetShape, Leaves, ModelCost, Pauses, Request, Workload
from control_plane.objects.domain.route import HedgingPolicy
from control_plane.triton.ports import CANCEL_AFTER_S
from tests.unit.fleet.simulation.fixed import SLOT, Fixed

TWICE = HedgingPolicy(is_on=False, twice_from_s=0.0)
LATE = HedgingPolicy(is_on=True)
READY_S = 10.0
"""When the model is ready on both servers."""


def twice(
    *requests: tuple[float, float, float],
    changes: tuple[Pauses | Leaves, ...] = (),
    heeds_after_s: float | None = None,
    is_repeatable: bool = True,
    look: list[tuple[float, dict[str, int]]] | None = None,
) -> tuple[SimulationResult, list[float]]:
    """Requests (when they come after `READY_S`, how long they take at the first server, and at the second) to the first
    of two servers with one instance each. Returns what came of it, and the latencies in order."""

    def where(request: Request, fleet: Fleet) -> str:
        if look is not None:
            in_flight = {name: server.replicas["a"].in_flight for name, server in fleet.servers.items()}
            look.append((round(request.at_s - READY_S, 6), in_flight))
        return "server-0"

    router = Fixed(where, ticks=[LoadReplica("a", "server-0"), LoadReplica("a", "server-1")], tick_s=1.0)
    cost = ModelCost(SLOT, 1.0, is_repeatable=is_repeatable, heeds_after_s=heeds_after_s)
    trace = [Request(READY_S + at_s, "a", first_s, second_s) for at_s, first_s, second_s in requests]
    shape = FleetShape(2, SLOT, changes=changes, counted_from_s=READY_S)
    outcome = simulate(Workload(trace, {"a": cost}), shape, router, hedging=TWICE)
    latencies = [round(outcome.quantile_s((rank + 1) / outcome.answered), 6) for rank in range(outcome.answered)]
    return outcome, latencies


def test_the_first_answer_counts_and_the_loser_works_on() -> None:
    outcome, latencies = twice((0, 5.0, 1.0), (10, 1.0, 5.0))
    assert latencies == [1.0, 1.0]
    assert outcome.hedges == {Hedge.WON: 1, Hedge.LOST: 1}
    assert (outcome.executions, outcome.computed_s) == (4, pytest.approx(12.0))


def test_a_loser_that_heeds_ends_soon_after_it_was_cancelled() -> None:
    outcome, latencies = twice((0, 5.0, 1.0), heeds_after_s=0.01)
    assert latencies == [1.0]
    assert outcome.computed_s == pytest.approx(1.0 + 1.0 + CANCEL_AFTER_S + 0.01)


def test_a_loser_that_would_end_before_it_is_cancelled_is_left_alone() -> None:
    outcome, _ = twice((0, 1.0 + CANCEL_AFTER_S / 2, 1.0), heeds_after_s=0.0)
    assert outcome.computed_s == pytest.approx(2.0 + CANCEL_AFTER_S / 2)


def test_a_loser_that_waits_is_not_begun() -> None:
    """The second request waits behind the first one, which straggles, and is answered by the other server."""
    outcome, latencies = twice((0, 5.0, 1.0), (1.5, 1.0, 1.0))
    assert latencies == [1.0, 1.0]
    assert outcome.executions == 3


def test_a_server_is_busy_with_what_was_cancelled_for_as_long_again() -> None:
    look: list[tuple[float, dict[str, int]]] = []
    twice((0, 9.0, 0.2), (0.2 + CANCEL_AFTER_S / 2, 0.0, 0.0), (0.4, 0.0, 0.0), (0.6, 0.0, 0.0), look=look)
    busy = {at_s: in_flight["server-0"] for at_s, in_flight in look}
    # Cancelled at 0.25 and held until 0.5, though it computes until 9; who comes meanwhile waits behind it, and its
    # own loser is dropped.
    assert busy[0.225] == 1
    assert busy[0.4] >= 1
    assert busy[0.6] == 0


def test_a_server_that_answers_what_was_sent_later_is_free_at_once() -> None:
    """With two instances the second request is answered beside the straggler."""
    look: list[tuple[float, int]] = []

    def where(request: Request, fleet: Fleet) -> str:
        look.append((request.at_s, fleet.servers["server-0"].replicas["a"].in_flight))
        return "server-0"

    router = Fixed(where, ticks=[LoadReplica("a", "server-0"), LoadReplica("a", "server-1")], tick_s=1.0)
    trace = [Request(10.0, "a", 9.0, 0.4), Request(10.5, "a", 0.1, 9.0), Request(10.61, "a", 0.1, 0.1)]
    shape = FleetShape(2, SLOT, parallel=2)
    simulate(Workload(trace, {"a": ModelCost(SLOT, 1.0, is_repeatable=True)}), shape, router, hedging=TWICE)
    assert look == [(10.0, 0), (10.5, 1), (10.61, 0)]


@pytest.mark.parametrize("is_repeatable", [True, False])
def test_only_repeatable_models_and_only_idle_servers(is_repeatable: bool) -> None:
    outcome, latencies = twice((0, 5.0, 4.0), (1, 5.0, 1.0), is_repeatable=is_repeatable)
    if is_repeatable:  # the second server is busy until 4, and gets the hedge then
        assert latencies == [4.0, 4.0]
        assert outcome.hedges == {Hedge.NO_IDLE_SERVER: 1, Hedge.WON: 2}
    else:
        assert (latencies, outcome.executions, outcome.hedges) == ([5.0, 9.0], 2, {})


def test_a_pause_holds_up_what_runs_and_what_waits() -> None:
    outcome, latencies = twice(
        (0, 1.0, 9.0), (2, 1.0, 9.0), (2.5, 1.0, 1.0), is_repeatable=False,
        changes=(Pauses(READY_S + 2.2, "server-0", 3.0), Pauses(READY_S + 3.0, "server-0", 1.0)),
    )  # fmt: skip
    assert latencies == [1.0, 4.0, 4.5]
    assert outcome.computed_s == pytest.approx(6.0)


def test_what_comes_to_an_idle_server_in_a_pause_begins_at_its_end() -> None:
    _, latencies = twice((2.5, 1.0, 9.0), is_repeatable=False, changes=(Pauses(READY_S + 2.0, "server-0", 3.0),))
    assert latencies == [3.5]


def test_another_server_answers_what_a_pause_holds_up() -> None:
    _, latencies = twice((0, 1.0, 1.5), changes=(Pauses(READY_S + 0.5, "server-0", 3.0),))
    assert latencies == [1.5]


def test_a_server_that_leaves_loses_nothing_that_another_one_has() -> None:
    outcome, latencies = twice((0, 3.0, 4.0), changes=(Leaves(READY_S + 1.0, "server-0"),))
    assert (latencies, outcome.rerouted, outcome.refused) == ([4.0], 0, 0)


def drawn(*, hedging: HedgingPolicy, load: float, part: float = 0.01, heeds: bool = True) -> SimulationResult:
    """Requests of 5 ms, of which a part takes 200 ms longer, to three servers with two instances each."""
    random, now_s, trace = Random(1), READY_S, []

    def takes_s() -> float:
        return random.gauss(0.005, 0.0003) + (0.2 if random.random() < part else 0.0)

    for _ in range(8_000 + 5_000):
        now_s += random.expovariate(load * 6 / (0.005 + part * 0.2))
        trace.append(Request(now_s, "m", takes_s(), takes_s()))
    cost = ModelCost(1, 0.001, is_repeatable=True, min_replicas=3, heeds_after_s=0.005 if heeds else None)
    shape = FleetShape(3, 1, parallel=2, routed_as=1, counted_from_s=trace[5_000].at_s)
    return simulate(Workload(trace, {"m": cost}), shape, ProductionRouter(Random(1)), hedging=hedging)


@pytest.mark.parametrize(
    ("load", "heeds", "gain"),
    [
        pytest.param(0.2, True, 12.0, id="at little load"),
        pytest.param(0.2, False, 10.0, id="of a model that heeds no cancellation"),
        pytest.param(0.4, True, 8.0, id="at some"),
        pytest.param(0.8, True, 0.98, id="at much load it does no harm"),
    ],
)
def test_what_hedging_gains_where_one_in_a_hundred_straggles(load: float, heeds: bool, gain: float) -> None:
    off, on = (drawn(hedging=policy, load=load, heeds=heeds) for policy in (HedgingPolicy(is_on=False), LATE))
    assert off.quantile_s(0.999) / on.quantile_s(0.999) >= gain
    assert on.executions <= 1.025 * off.executions


def test_what_has_no_stragglers_is_not_hedged() -> None:
    off, on = (drawn(hedging=policy, load=0.4, part=0.0) for policy in (HedgingPolicy(is_on=False), LATE))
    assert on.executions <= 1.002 * off.executions
    assert on.quantile_s(0.999) <= 1.01 * off.quantile_s(0.999) < inf


def test_what_is_noticed_late_takes_longer_and_keeps_no_server_busy() -> None:
    """The next one begins when the one before has ended, and not when its answer is noticed."""

    def outcome_of(noticed_late_s: float) -> SimulationResult:
        requests = [Request(READY_S + 0.05 * number, "a", 0.03 + 0.3 * (number % 100 == 99), 0.03, noticed_late_s) for number in range(600)]
        shape = FleetShape(2, SLOT, counted_from_s=READY_S)
        cost = ModelCost(SLOT, 0.1, min_replicas=2, is_repeatable=True)
        return simulate(Workload(requests, {"a": cost}), shape, ProductionRouter(Random(1)), hedging=LATE)

    at_once, late = outcome_of(0.0), outcome_of(0.2)
    assert late.quantile_s(0.5) == pytest.approx(at_once.quantile_s(0.5) + 0.2)
    assert late.computed_s == pytest.approx(at_once.computed_s, rel=0.1)
