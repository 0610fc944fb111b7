"""Small cases worked out by hand (loads take 5 s, services 1 s), and properties that hold in any case."""

from __future__ import annotations

from random import Random

import pytest

from control_plane.fleet.domain.fleet import NEVER_S, Fleet
from control_plane.fleet.simulation.engine import simulate
from control_plane.fleet.simulation.generators import model_names, poisson, zipf
from control_plane.fleet.simulation.outcome import SimulationResult
from control_plane.fleet.simulation.router import LoadReplica, UnloadReplica
from control_plane.fleet.simulation.workload import Joins, Leaves, ModelCost, Request, Workload
from tests.unit.fleet.simulation.fixed import LOAD_S, SLOT, Fixed, shape, workload


def latencies(outcome: SimulationResult) -> list[float]:
    return [round(outcome.quantile_s((rank + 1) / outcome.answered), 6) for rank in range(outcome.answered)]


@pytest.mark.parametrize(
    ("requests", "slots", "loads", "unloads", "answered_after_s"),
    [
        pytest.param([(0, "a")], 1, 1, 0, [6], id="a load and a service"),
        pytest.param([(0, "a"), (1, "a"), (2, "a")], 1, 1, 0, [6, 6, 6], id="those who wait for one load wait together"),
        pytest.param([(0, "a"), (10, "a")], 1, 1, 0, [1, 6], id="then it is there"),
        pytest.param([(0, "a"), (10, "b")], 2, 2, 0, [6, 6], id="room for both"),
        pytest.param([(0, "a"), (10, "b"), (20, "a")], 1, 3, 2, [6, 6, 6], id="room for one"),
        pytest.param([(0, "a"), (0, "b")], 2, 2, 0, [6, 11], id="one load at a time"),
        pytest.param([(0, "a"), (10, "a"), (10, "a")], 1, 1, 0, [1, 2, 6], id="one request at a time"),
        pytest.param([(0, "a"), (10, "a"), (10.5, "b")], 1, 2, 1, [1, 6, 6.5], id="memory is free when the request has ended"),
        pytest.param(
            [(0, "a"), (10, "a"), (10.5, "b"), (10.6, "a")], 1, 3, 2, [1, 6, 6.5, 12.4], id="asked for while it goes: loaded anew"
        ),
        pytest.param([(0, "a"), (10, "b"), (11, "a")], 2, 2, 0, [1, 6, 6], id="others are served during a load"),
    ],
)
def test_by_hand(requests: list[tuple[float, str]], slots: int, loads: int, unloads: int, answered_after_s: list[float]) -> None:
    outcome = simulate(workload(*requests), shape(slots=slots), Fixed())
    assert (outcome.loads, outcome.evictions, outcome.refused) == (loads, unloads, 0)
    assert latencies(outcome) == answered_after_s


def test_memory_that_takes_its_time_to_be_free() -> None:
    models = {name: ModelCost(SLOT, LOAD_S, unload_s=2.0) for name in "ab"}
    outcome = simulate(Workload([Request(0, "a", 1.0), Request(10, "b", 1.0)], models), shape(), Fixed())
    assert latencies(outcome) == [6, 8]
    assert outcome.max_held_bytes == SLOT


def test_what_requests_waited_for_loads_and_which_were_ahead_of_demand() -> None:
    ahead = [LoadReplica("b", "server-0", is_prefetch=True), LoadReplica("c", "server-0", is_prefetch=True)]
    outcome = simulate(workload((0, "a"), (2, "a"), (30, "b")), shape(slots=3), Fixed(ticks=ahead, tick_s=8.0))
    assert outcome.waited_for_loads_s == pytest.approx(LOAD_S + LOAD_S - 2)
    assert (outcome.loads, outcome.prefetches, outcome.prefetches_used) == (3, 2, 1)


class Moving(Fixed):
    requests_may_move = True


def test_who_waits_for_a_load_goes_where_another_replica_is_ready_first() -> None:
    """The second request for a is sent behind a load of b, and at 5 there is a replica on the other server."""
    requests = [(0.0, "b"), (0.0, "a"), (1.0, "a")]
    where = iter(["server-0", "server-1", "server-0", "server-1"])
    outcome = simulate(workload(*requests), shape(servers=2, slots=2), Moving(lambda request, fleet: next(where)))
    assert latencies(outcome) == [6, 6, 6]
    where = iter(["server-0", "server-1", "server-0"])
    assert latencies(simulate(workload(*requests), shape(servers=2, slots=2), Fixed(lambda request, fleet: next(where)))) == [6, 6, 10]


def test_who_waits_for_a_load_goes_elsewhere_where_there_is_no_room_for_it() -> None:
    class Full(Moving):
        def victims(self, model: str, server: str, fleet: Fleet, now_s: float) -> list[str] | None:
            return None if server == "server-0" and model == "b" else []

    where = iter(["server-0", "server-0", "server-1"])
    outcome = simulate(workload((0, "a"), (10, "b")), shape(servers=2), Full(lambda request, fleet: next(where)))
    assert (latencies(outcome), outcome.loads, outcome.refused) == ([6, 6], 2, 0)


def test_a_server_that_serves_nothing_during_a_load() -> None:
    outcome = simulate(workload((0, "a"), (10, "b"), (11, "a")), shape(slots=2, serves_while_loading=False), Fixed())
    # b is ready at 15; a's request came before it into the queue and ends at 16, b's at 17.
    assert latencies(outcome) == [5, 6, 7]


def test_what_a_router_is_shown() -> None:
    """At 10.5 a request for a runs, one for b waits for its load, which is under way, and c's load is behind
    that."""
    seen = []

    def look(request: Request, fleet: Fleet) -> str:
        server = fleet.servers["server-0"]
        replicas = {
            name: (replica.state.value, replica.bytes, replica.in_flight, replica.ready_s) for name, replica in server.replicas.items()
        }
        seen.append((server.work_s, server.loads_until_s, replicas))
        return "server-0"

    requests = (0, "a"), (9.9, "a"), (10, "b"), (10.2, "c"), (10.5, "a")
    outcome = simulate(workload(*requests), shape(slots=3), Fixed(look))
    replicas = {"a": ("READY", SLOT, 1, 5.0), "b": ("LOADING", SLOT, 1, 15.0), "c": ("LOADING", 0, 1, 20.0)}
    assert seen[-1] == (pytest.approx(3.0), 20.0, replicas)
    assert latencies(outcome) == pytest.approx([1, 1.4, 6, 6, 10.8])


def test_a_load_that_waits_for_memory_is_expected_later() -> None:
    """At 10.5 the request for a has half a second to go, and only then b is loaded."""
    seen = []

    def look(request: Request, fleet: Fleet) -> str:
        seen.append(fleet.servers["server-0"].loads_until_s)
        return "server-0"

    simulate(workload((0, "a"), (10, "a"), (10.5, "b"), (10.6, "b"), (12, "b")), shape(), Fixed(look))
    assert seen[-2:] == [15.5, 16.0]


def test_loads_are_work_where_nothing_is_served_meanwhile() -> None:
    seen = []

    def look(request: Request, fleet: Fleet) -> str:
        seen.append(fleet.servers["server-0"].work_s)
        return "server-0"

    simulate(workload((0, "a"), (1, "b"), (20, "a")), shape(slots=2, serves_while_loading=False), Fixed(look))
    assert seen == pytest.approx([0, LOAD_S + 1, 0])


def test_a_model_that_was_loaded_has_not_been_refused_since() -> None:
    seen = []

    def look(request: Request, fleet: Fleet) -> str:
        seen.append(fleet.models["a"].refused_since_s)
        fleet.models["a"].refused_since_s = request.at_s
        return "server-0"

    simulate(workload((0, "a"), (1, "a"), (20, "a")), shape(), Fixed(look))
    assert seen == [NEVER_S, 0, NEVER_S]


def test_two_requests_at_a_time() -> None:
    outcome = simulate(workload((0, "a"), (10, "a"), (10, "a"), (10, "a")), shape(parallel=2), Fixed())
    assert latencies(outcome) == [1, 1, 2, 6]


def test_a_refused_request() -> None:
    outcome = simulate(workload((0, "a"), (1, "b")), shape(), Fixed(lambda request, fleet: None if request.model == "b" else "server-0"))
    assert (outcome.answered, outcome.refused, outcome.loads) == (1, 1, 1)


def test_a_refused_request_asks_again_until_its_deadline() -> None:
    asked = []

    def from_the_third_on(request: object, fleet: object) -> str | None:
        asked.append(request)
        return "server-0" if len(asked) > 2 else None

    router = Fixed(from_the_third_on)
    router.retry_after_s = 3.0
    assert latencies(simulate(workload((0, "a")), shape(), router)) == [12]
    router = Fixed(lambda request, fleet: None)
    router.retry_after_s = 0.0
    assert simulate(workload((0, "a")), shape(deadline_s=0.5), router).refused == 1
    assert 100 < len(router.held) < 1000


def test_what_nobody_begins_by_its_deadline_is_refused() -> None:
    outcome = simulate(workload((0, "a"), (0, "a"), (0, "a"), (0, "a")), shape(deadline_s=6.5), Fixed())
    assert (outcome.answered, outcome.refused) == (2, 2)


def test_what_waits_for_ever_is_refused_at_the_end() -> None:
    models = {"a": ModelCost(SLOT, 1.0), "b": ModelCost(2 * SLOT, 1.0)}
    requests = workload((0, "a"), (5, "b"), (6, "b")).requests
    outcome = simulate(Workload(requests, models), shape(), Fixed())
    assert (outcome.answered, outcome.refused, outcome.loads) == (1, 2, 1)


def test_a_server_that_leaves_sends_what_it_had_elsewhere() -> None:
    """At 5.5 one request runs on the server, one is in its queue and one waits for a load."""
    changes = [Leaves(5.5, "server-0")]
    there = workload((0, "a"), (0, "a"), (1, "b"))
    outcome = simulate(there, shape(servers=2, slots=2, changes=changes), Fixed(lambda request, fleet: next(iter(fleet.servers))))
    # a is ready on the other server at 10.5, b at 15.5.
    assert (outcome.rerouted, outcome.loads) == (3, 4)
    assert latencies(outcome) == [11.5, 12.5, 15.5]


def test_when_all_servers_have_left_requests_are_refused() -> None:
    outcome = simulate(
        workload((0, "a"), (8, "a")),
        shape(changes=[Leaves(3.0, "server-0")]),
        Fixed(lambda request, fleet: next(iter(fleet.servers), None)),
    )
    assert (outcome.answered, outcome.refused) == (0, 2)


def test_a_server_that_joins_is_empty() -> None:
    router = Fixed(lambda request, fleet: list(fleet.servers)[-1])
    outcome = simulate(workload((0, "a"), (10, "a"), (20, "a")), shape(changes=[Joins(9.0, "server-9")]), router)
    assert (outcome.loads, latencies(outcome)) == (2, [1, 6, 6])


def test_loads_and_unloads_between_requests() -> None:
    ticks = [LoadReplica("b", "server-0"), UnloadReplica("a", "server-0")]
    outcome = simulate(workload((0, "a"), (30, "b"), (40, "a")), shape(slots=2), Fixed(ticks=ticks, tick_s=10.0))
    assert (outcome.loads, outcome.evictions) == (3, 1)
    assert latencies(outcome) == [1, 6, 6]


def test_a_load_that_nobody_waits_for_is_dropped_where_there_is_no_room() -> None:
    two = {"a": ModelCost(SLOT, 1.0), "b": ModelCost(2 * SLOT, 1.0)}
    requests = workload((0, "a"), (20, "a")).requests
    outcome = simulate(Workload(requests, two), shape(), Fixed(ticks=[LoadReplica("b", "server-0")], tick_s=10.0))
    assert (outcome.answered, outcome.loads) == (2, 1)


class _Greedy(Fixed):
    def victims(self, *_: object) -> list[str]:
        return []


def test_a_router_that_makes_no_room_is_told() -> None:
    with pytest.raises(ValueError, match="b has no room on server-0 without anything unloaded"):
        simulate(workload((0, "a"), (10, "b")), shape(), _Greedy())


def test_only_what_is_ready_can_be_unloaded() -> None:
    with pytest.raises(ValueError, match="a on server-0 is LOADING"):
        simulate(workload((0, "a")), shape(), Fixed(ticks=[UnloadReplica("a", "server-0")], tick_s=1.0))


def _anywhere(seed: int) -> Fixed:
    random = Random(seed)
    return Fixed(lambda request, fleet: random.choice(list(fleet.servers)) if fleet.servers else None)


def _busy(seed: int) -> Workload:
    """A workload that is too much for three servers with two slots: there are queues, drains and refusals."""
    random = Random(seed)
    requests = poisson(random, zipf(random, model_names(9), 600, 0.7), 4.0, 1.0)
    return Workload(requests, {name: ModelCost(random.choice([SLOT, SLOT // 2, SLOT * 2]), 2.0) for name in model_names(9)})


CHANGES = [Leaves(20.0, "server-1"), Joins(50.0, "server-1"), Leaves(70.0, "server-0"), Joins(80.0, "server-7")]


@pytest.mark.parametrize("seed", range(6))
def test_every_request_is_answered_or_refused_once_and_memory_kept_to(seed: int) -> None:
    router = _anywhere(seed)
    outcome = simulate(_busy(seed), shape(servers=3, slots=2, deadline_s=20.0, changes=CHANGES), router)
    assert outcome.answered + outcome.refused == 600
    assert outcome.refused
    assert outcome.rerouted
    assert outcome.evictions > 50
    assert max(router.held) == outcome.max_held_bytes <= 2 * SLOT
    assert {replica.in_flight for server in router.fleet.servers.values() for replica in server.replicas.values()} == {0}
    assert [server.work_s for server in router.fleet.servers.values()] == pytest.approx([0.0] * 3)


def test_the_same_input_has_the_same_outcome() -> None:
    def run(seed: int) -> tuple[object, ...]:
        outcome = simulate(_busy(0), shape(servers=3, slots=2, changes=CHANGES), _anywhere(seed))
        return outcome.loads, outcome.evictions, outcome.refused, tuple(latencies(outcome))

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_nothing_to_do() -> None:
    outcome = simulate(workload(), shape(), Fixed(tick_s=1.0))
    assert (outcome.requests, outcome.loads) == (0, 0)
