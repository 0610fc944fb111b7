"""Each baseline's rule on a fleet that is written down."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet, ModelFacts, Replica, Server
from control_plane.fleet.simulation.router import RefuseRequest, SendRequest
from control_plane.fleet.simulation.workload import Request
from control_plane.models.domain.description import ModelSpec
from perf.simulate.baselines import BoundedHash, ConsistentHash, LeastOutstanding, RandomServer, RoundRobin, least_recently_used

SERVICE_S = 0.1


def fleet(*work: float, models: str = "abcdefgh") -> Fleet:
    """Servers 0, 1, ... with so many requests each."""
    made = Fleet(models={name: ModelFacts(ModelSpec(name), 1, 1.0, SERVICE_S) for name in models})
    for number, requests in enumerate(work):
        made.add_server(Server(str(number), 3, work_s=requests * SERVICE_S))
    return made


def request(model: str = "a") -> Request:
    return Request(0.0, model, SERVICE_S)


def server(choice: SendRequest | RefuseRequest) -> str:
    assert isinstance(choice, SendRequest)
    return choice.server


def test_round_robin() -> None:
    router = RoundRobin()
    assert [server(router.choose(request(), fleet(0, 0, 0), 0.0)) for _ in range(6)] == ["1", "2", "0", "1", "2", "0"]


def test_random() -> None:
    router = RandomServer(Random(1))
    counts = Counter(server(router.choose(request(), fleet(9, 0), 0.0)) for _ in range(1000))
    assert counts["0"] == pytest.approx(500, abs=60)


def test_least_outstanding() -> None:
    router = LeastOutstanding(Random(1))
    assert {server(router.choose(request(), fleet(2, 1, 1, 3), 0.0)) for _ in range(50)} == {"1", "2"}


def test_a_hash_is_sticky_and_moves_little_when_a_server_leaves() -> None:
    names = "abcdefghijklmnopqrstuvwxyz"
    router, five = ConsistentHash(), fleet(0, 0, 0, 0, 0, models=names)
    before = {name: server(router.choose(request(name), five, 0.0)) for name in names}
    assert before == {name: server(router.choose(request(name), five, 9.0)) for name in names}
    assert len(set(before.values())) == 5
    five.remove_server("3")
    after = {name: server(router.choose(request(name), five, 0.0)) for name in names}
    assert {name for name in names if before[name] != after[name]} == {name for name in names if before[name] == "3"}


def test_clockwise_is_all_of_them_once() -> None:
    found = list(ConsistentHash().clockwise("a", fleet(0, 0, 0, 0)))
    assert sorted(found) == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("work", "place"),
    [
        pytest.param([0, 0, 0, 0], 0, id="idle: its own"),
        pytest.param([1, 1, 1, 1], 0, id="5 requests on 4 at most 2 each"),
        pytest.param([2, 0, 1, 1], 1, id="full: the next"),
        pytest.param([2, 2, 0, 0], 2, id="both full: the one after"),
        pytest.param([9, 9, 9, 9], 0, id="37 on 4 at most 12 each"),
    ],
)
def test_a_bounded_hash(work: list[float], place: int) -> None:
    """`work` is clockwise from the model's place."""
    ring = list(BoundedHash().clockwise("a", fleet(0, 0, 0, 0)))
    loaded = fleet(0, 0, 0, 0)
    for name, requests in zip(ring, work, strict=True):
        loaded.servers[name].work_s = requests * SERVICE_S
    assert server(BoundedHash().choose(request(), loaded, 0.0)) == ring[place]


@pytest.mark.parametrize("router", [RoundRobin(), RandomServer(Random(1)), LeastOutstanding(Random(1)), ConsistentHash(), BoundedHash()])
def test_without_servers_they_refuse(router: RoundRobin) -> None:
    assert isinstance(router.choose(request(), fleet(), 0.0), RefuseRequest)
    assert list(router.tick(fleet(), 0.0)) == []


READY, LOADING, UNLOADING = ModelState.READY, ModelState.LOADING, ModelState.UNLOADING


@pytest.mark.parametrize(
    ("replicas", "needed", "victims"),
    [
        pytest.param([], 3, [], id="empty"),
        pytest.param([("a", READY, 1, 5)], 2, [], id="room"),
        pytest.param([("a", READY, 1, 5), ("b", READY, 1, 3), ("c", READY, 1, 4)], 1, ["b"], id="the oldest"),
        pytest.param([("a", READY, 1, 5), ("b", READY, 1, 3), ("c", READY, 1, 4)], 2, ["b", "c"], id="as many as it takes"),
        pytest.param([("a", READY, 1, 5), ("b", LOADING, 1, 3), ("c", READY, 1, 4)], 1, ["c"], id="nothing that loads"),
        pytest.param([("a", READY, 2, 5), ("b", UNLOADING, 1, 3)], 1, [], id="what goes is as good as gone"),
        pytest.param([("a", LOADING, 3, 5)], 1, None, id="not enough can go"),
        pytest.param([("a", READY, 1, 5)], 4, None, id="too large"),
    ],
)
def test_what_was_used_last_stays(replicas: list[tuple[str, ModelState, int, float]], needed: int, victims: list[str] | None) -> None:
    at = Server("0", 3, replicas={name: Replica(name, state, size, 0.0, last_used_s=used) for name, state, size, used in replicas})
    assert least_recently_used(at, needed) == victims


def test_a_server_does_it_by_the_models_size() -> None:
    one = fleet(0)
    one.put_replica(one.servers["0"], Replica("b", READY, 3, 0.0, last_used_s=0.0))
    assert RoundRobin().victims("a", "0", one, 0.0) == ["b"]
