"""ModelMesh's rules one by one, with their published constants."""

from __future__ import annotations

from random import Random

import pytest

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet, ModelFacts, Replica, Server
from control_plane.fleet.simulation.router import LoadReplica, RefuseRequest, SendRequest, UnloadReplica
from control_plane.fleet.simulation.workload import Request
from control_plane.models.domain.description import ModelSpec
from perf.simulate.modelmesh import ModelMesh

READY, LOADING, UNLOADING = ModelState.READY, ModelState.LOADING, ModelState.UNLOADING
NOW_S = 10_000.0


def fleet(*servers: dict[str, tuple[ModelState, float]], slots: int = 2) -> Fleet:
    """What is where, and when it was last used."""
    made = Fleet(models={name: ModelFacts(ModelSpec(name), 1, 1.0, 0.1, last_used_s=NOW_S) for name in "abcdef"})
    for number, replicas in enumerate(servers):
        server = Server(str(number), slots)
        made.add_server(server)
        for name, (state, used_s) in replicas.items():
            made.put_replica(server, Replica(name, state, 1, 0.0, last_used_s=used_s))
    return made


def chosen(there: Fleet, seeds: int = 20) -> set[str | None]:
    choices = [ModelMesh(Random(seed)).choose(Request(0.0, "a", 0.1), there, NOW_S) for seed in range(seeds)]
    return {choice.server if isinstance(choice, SendRequest) else None for choice in choices}


def test_a_replica_with_the_fewest_requests_then_the_longest_unused() -> None:
    there = fleet({"a": (READY, 5.0)}, {"a": (READY, 4.0)}, {"a": (READY, 3.0)})
    there.servers["2"].replicas["a"].in_flight = 1
    assert chosen(there) == {"1"}


def test_a_loading_replica_only_where_there_is_no_other() -> None:
    assert chosen(fleet({"a": (LOADING, 0.0)}, {"a": (READY, 5.0)}, {})) == {"1"}
    assert chosen(fleet({"a": (LOADING, 0.0)}, {"a": (UNLOADING, 5.0)}, {})) == {"0"}


def test_servers_that_are_not_full_come_first() -> None:
    assert chosen(fleet({"b": (READY, 0.0), "c": (READY, 0.0)}, {"d": (READY, NOW_S)}, {})) == {"1", "2"}


def test_of_full_ones_those_about_as_old_as_the_oldest() -> None:
    full = {"c": (READY, NOW_S)}
    there = fleet({"b": (READY, NOW_S - 1000), **full}, {"b": (READY, NOW_S - 910), **full}, {"b": (READY, NOW_S - 800), **full})
    assert chosen(there) == {"0", "1"}


def test_a_busy_server_is_left_out() -> None:
    there = fleet({}, {}, {})
    there.servers["0"].work_s, there.servers["1"].work_s, there.servers["2"].work_s = 0.5, 0.19, 0.0
    assert chosen(there) == {"1", "2"}


def test_the_churn_guard() -> None:
    full = {"b": (READY, NOW_S - 29), "c": (READY, NOW_S)}
    assert chosen(fleet(full)) == {None}
    assert isinstance(ModelMesh(Random(1), 0.1).choose(Request(0.0, "a", 0.1), fleet(full), NOW_S), SendRequest)
    assert isinstance(ModelMesh(Random(1)).choose(Request(0.0, "a", 0.1), Fleet(models=fleet().models), NOW_S), RefuseRequest)


def ticked(there: Fleet, requests: int, now_s: float = NOW_S) -> list[LoadReplica | UnloadReplica]:
    mesh = ModelMesh(Random(1))
    for _ in range(requests):
        mesh.choose(Request(0.0, "a", 0.1), there, now_s)
    return list(mesh.tick(there, now_s))


@pytest.mark.parametrize(
    ("requests", "loads"),
    [(300, 0), (400, 1), (700, 2), (5000, 2)],
)
def test_more_replicas_by_requests_per_minute(requests: int, loads: int) -> None:
    """A check is of ten seconds: 333 are 2,000 per minute."""
    there = fleet({"a": (READY, NOW_S)}, {}, {}, {}, {}, {}, {})
    assert [type(change) for change in ticked(there, requests)] == [LoadReplica] * loads


def test_not_more_while_one_loads() -> None:
    assert ticked(fleet({"a": (READY, NOW_S)}, {"a": (LOADING, NOW_S)}, {}), 5000) == []


def test_a_second_replica_for_what_comes_back_after_minutes() -> None:
    there, mesh = fleet({"a": (READY, NOW_S)}, {}, {}), ModelMesh(Random(1))
    assert list(mesh.tick(there, NOW_S)) == []
    there.models["a"].last_used_s = NOW_S + 600
    assert [change.model for change in mesh.tick(there, NOW_S + 600)] == ["a"]


def test_fewer_replicas_where_all_is_full_and_settled() -> None:
    both = {"a": (READY, 5.0), "b": (READY, 4.0)}, {"a": (READY, 3.0), "c": (READY, 4.0)}
    assert ticked(fleet(*both), 10) == [UnloadReplica("a", "0")] or ticked(fleet(*both), 10) == [UnloadReplica("a", "1")]
    assert ticked(fleet(*both), 500) == [], "used more than two thirds of a replica's"
    assert ticked(fleet(*both), 10, now_s=1000.0) == [], "loaded within half an hour"
    assert ticked(fleet(*both, {}), 10) == [], "not full"
