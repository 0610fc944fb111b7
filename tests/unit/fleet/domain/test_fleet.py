from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet, Replica, Server

changes = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "put", "drop"]), st.sampled_from("abc"), st.sampled_from("xyz")),
    max_size=40,
)


def copy(model: str, state: ModelState = ModelState.READY) -> Replica:
    return Replica(model, state, 1, 0.0)


@given(changes)
def test_holders_are_the_servers_that_have_a_copy(changes: list[tuple[str, str, str]]) -> None:
    fleet = Fleet()
    for verb, name, model in changes:
        server = fleet.servers.get(name)
        if verb == "join":
            fleet.add_server(Server(name, 10, pool=model, copies={model: copy(model)}))
        elif verb == "leave":
            fleet.remove_server(name)
        elif server is not None and verb == "put":
            fleet.put_replica(server, copy(model))
        elif server is not None:
            fleet.drop_replica(server, model)
    expected: dict[str, dict[str, Server]] = {}
    for name, server in fleet.servers.items():
        for model in server.copies:
            expected.setdefault(model, {})[name] = server
    assert fleet.holders == expected
    pools = {server.pool for server in fleet.servers.values()}
    assert fleet.pools == {pool: {name: each for name, each in fleet.servers.items() if each.pool == pool} for pool in pools}


def test_copies_that_serve_are_ready_and_on_servers_that_serve() -> None:
    fleet = Fleet()
    fleet.add_server(Server("ready", 1, copies={"m": copy("m")}))
    fleet.add_server(Server("loading", 1, copies={"m": copy("m", ModelState.LOADING)}))
    fleet.add_server(Server("unloading", 1, copies={"m": copy("m", ModelState.UNLOADING)}))
    fleet.add_server(Server("down", 1, copies={"m": copy("m")}, is_up=False))
    fleet.add_server(Server("ejected", 1, copies={"m": copy("m")}, is_ejected=True))
    fleet.add_server(Server("leaving", 1, copies={"m": copy("m")}, is_draining=True))
    fleet.add_server(Server("without", 1, copies={"other": copy("other")}))
    assert fleet.ready_replicas("m") == 1
    assert fleet.ready_replicas("unheard of") == 0


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
    server = Server("s", 5, copies={state.value: copy(state.value, state) for state in ModelState if state is not ModelState.UNAVAILABLE})
    assert (server.held_bytes, server.free_bytes) == (3, 2)
