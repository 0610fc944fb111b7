from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet, ModelFacts, Replica, Server
from control_plane.models.domain.description import ModelSpec

changes = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "put", "drop"]), st.sampled_from("abc"), st.sampled_from("xyz")),
    max_size=40,
)


def replica(model: str, state: ModelState = ModelState.READY) -> Replica:
    return Replica(model, state, 1, 0.0)


@given(changes)
def test_holders_are_the_servers_that_have_a_replica(changes: list[tuple[str, str, str]]) -> None:
    fleet = Fleet()
    for verb, name, model in changes:
        server = fleet.servers.get(name)
        if verb == "join":
            fleet.add_server(Server(name, 10, pool=model, replicas={model: replica(model)}))
        elif verb == "leave":
            fleet.remove_server(name)
        elif server is not None and verb == "put":
            fleet.put_replica(server, replica(model))
        elif server is not None:
            fleet.drop_replica(server, model)
    expected: dict[str, dict[str, Server]] = {}
    for name, server in fleet.servers.items():
        for model in server.replicas:
            expected.setdefault(model, {})[name] = server
    assert fleet.holders == expected
    pools = {server.pool for server in fleet.servers.values()}
    assert fleet.pools == {pool: {name: each for name, each in fleet.servers.items() if each.pool == pool} for pool in pools}


def test_replicas_of_a_model_by_what_they_can_be_counted_on_for() -> None:
    fleet = Fleet()
    fleet.add_server(Server("ready", 1, replicas={"m": replica("m")}))
    fleet.add_server(Server("loading", 1, replicas={"m": replica("m", ModelState.LOADING)}))
    fleet.add_server(Server("unloading", 1, replicas={"m": replica("m", ModelState.UNLOADING)}))
    fleet.add_server(Server("down", 1, replicas={"m": replica("m")}, is_up=False))
    fleet.add_server(Server("ejected", 1, replicas={"m": replica("m")}, is_ejected=True))
    fleet.add_server(Server("leaving", 1, replicas={"m": replica("m")}, is_draining=True))
    fleet.add_server(Server("without", 1, replicas={"other": replica("other")}))
    assert [server.name for server, _ in fleet.ready_replicas("m")] == ["ready"]
    assert [server.name for server, _ in fleet.staying_replicas("m")] == ["ready", "loading", "ejected"]
    assert [server.name for server, replica in fleet.replicas("m") if replica is server.replicas["m"]] == list(fleet.servers)[:-1]
    assert fleet.replicas("unheard of") == fleet.ready_replicas("unheard of") == fleet.staying_replicas("unheard of") == []


def test_a_model_is_loading_wherever_a_replica_is() -> None:
    fleet = Fleet()
    fleet.add_server(Server("ready", 1, replicas={"m": replica("m")}))
    assert not fleet.is_loading("m")
    fleet.add_server(Server("loading", 1, replicas={"m": replica("m", ModelState.LOADING)}))
    assert fleet.is_loading("m")
    assert not fleet.is_loading("unheard of")


def test_a_pool_is_open_while_one_of_its_servers_is() -> None:
    fleet = Fleet()
    for name, pool in {"a": "short", "b": "short", "c": "long", "d": ""}.items():
        fleet.add_server(Server(name, 1, pool=pool))
    assert sorted(fleet.open_pools()) == ["", "long", "short"]
    fleet.servers["a"].is_draining = fleet.servers["c"].is_ejected = True
    assert sorted(fleet.open_pools()) == ["", "short"]
    fleet.servers["b"].is_up = False
    assert fleet.open_pools() == [""]


def test_labels_have_their_values() -> None:
    server = Server("s", 1, labels={"gpu": "h200", "zone": "a"})
    assert server.has_labels({})
    assert server.has_labels({"gpu": "h200", "zone": "a"})
    assert not server.has_labels({"gpu": "a100"})
    assert not server.has_labels({"disk": "nvme"})


def test_memory_counts_until_it_is_released() -> None:
    server = Server(
        "s", 5, replicas={state.value: replica(state.value, state) for state in ModelState if state is not ModelState.UNAVAILABLE}
    )
    assert (server.held_bytes, server.free_bytes) == (3, 2)


NEVER = ModelFacts(ModelSpec("never"), 1, 1.0, 0.01)


def used(*times_s: float) -> ModelFacts:
    facts = ModelFacts(ModelSpec("m"), 1, 1.0, 0.01)
    for at_s in times_s:
        facts.count_uses(at_s)
    return facts


def steadily(per_s: float, until_s: float) -> ModelFacts:
    return used(*(number / per_s for number in range(1, int(until_s * per_s) + 1)))


@pytest.mark.parametrize("per_s", [0.5, 2.0, 20.0])
def test_rates_are_what_comes_steadily(per_s: float) -> None:
    facts = steadily(per_s, 300.0)
    assert facts.rate_fast == pytest.approx(per_s, rel=0.05)
    assert facts.demand(300.0) == pytest.approx(per_s * 0.01, rel=0.05)


def test_the_fast_rate_forgets_sooner() -> None:
    facts = steadily(2.0, 300.0)
    facts.count_uses(400.0)
    assert facts.rate_fast < 0.2
    assert facts.rate_slow > 0.4


def test_many_at_once_are_as_many_one_by_one() -> None:
    one_by_one, at_once = used(10.0, 60.0, 60.0, 60.0), used(10.0)
    at_once.count_uses(60.0, 3)
    assert at_once.rate_fast == pytest.approx(one_by_one.rate_fast)
    assert at_once.rate_slow == pytest.approx(one_by_one.rate_slow)


def test_demand_fades_while_nobody_asks() -> None:
    facts = steadily(2.0, 300.0)
    assert facts.demand(300.0 + 90.0) == pytest.approx(facts.demand(300.0) / 20, rel=0.01)


@pytest.mark.parametrize(
    ("likelier", "other"),
    [
        pytest.param(used(90.0), used(10.0), id="of two used once the one used later"),
        pytest.param(used(50.0, 60.0, 70.0, 80.0), used(90.0), id="used often, a little longer ago"),
        pytest.param(used(99.0), used(1.0, 2.0, 3.0), id="what was used often long ago is over"),
        pytest.param(used(10.0), NEVER, id="used at all"),
    ],
)
def test_which_is_likelier_to_be_used(likelier: ModelFacts, other: ModelFacts) -> None:
    assert likelier.uses_per_s(100.0) > other.uses_per_s(100.0)


def test_what_was_never_used_is_not_expected() -> None:
    assert NEVER.uses_per_s(100.0) == 0.0


def test_a_clock_that_stands_still_is_no_matter() -> None:
    facts = used(5.0, 5.0, 5.0)
    assert facts.rate_fast == pytest.approx(3 / 30)
    assert 0.0 < facts.uses_per_s(5.0) < inf


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 1e6))
def test_the_longer_it_lies_idle_the_less_it_is_expected(times_s: list[float], idle_s: float) -> None:
    facts = used(*sorted(times_s))
    last_s = max(times_s)
    sooner, later = (facts.uses_per_s(last_s + each) for each in (idle_s, 2 * idle_s))
    assert 0.0 <= later <= sooner
