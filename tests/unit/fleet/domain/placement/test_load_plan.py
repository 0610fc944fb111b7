from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from control_plane.core.errors import Overloaded
from control_plane.core.model import ModelState, ModelVersion
from control_plane.fleet.domain.fleet import ModelFacts, Replica, Server
from control_plane.fleet.domain.placement.load_plan import (
    AwaitReady,
    AwaitReleased,
    Load,
    Step,
    Unload,
    held_bytes,
    plan,
    replicas_of,
    states_of,
)
from control_plane.models.domain.description import ModelSpec

READY, LOADING, UNLOADING, UNAVAILABLE = ModelState.READY, ModelState.LOADING, ModelState.UNLOADING, ModelState.UNAVAILABLE
MIB = 2**20


def server(budget: int, *replicas: tuple[str, ModelState, int]) -> Server:
    return Server("s", budget * MIB, replicas={name: Replica(name, state, size * MIB, 0.0) for name, state, size in replicas})


def facts(name: str = "m", size: int = 4) -> ModelFacts:
    return ModelFacts(ModelSpec(name), size * MIB, load_s=1.0, service_s=0.0)


def steps(server: Server, model: ModelFacts, *victims: str) -> list[Step]:
    return list(plan(server, model, victims))


LOAD_M: list[Step] = [Load("m", 4 * MIB), AwaitReady("m")]


@pytest.mark.parametrize(
    ("server", "victims", "expected"),
    [
        pytest.param(server(10), [], LOAD_M, id="there is room"),
        pytest.param(server(10, ("a", READY, 6)), [], LOAD_M, id="just enough"),
        pytest.param(server(10, ("a", READY, 7)), ["a"], [Unload("a"), AwaitReleased("a"), *LOAD_M], id="one must go"),
        pytest.param(
            server(10, ("a", READY, 5), ("b", READY, 5)),
            ["b", "a"],
            [Unload("b"), Unload("a"), AwaitReleased("b"), AwaitReleased("a"), *LOAD_M],
            id="two drain together",
        ),
        pytest.param(server(10), ["a"], LOAD_M, id="a victim is gone already"),
        pytest.param(server(10, ("a", UNLOADING, 7)), ["a"], [AwaitReleased("a"), *LOAD_M], id="a victim is on its way out"),
        pytest.param(server(10, ("a", UNLOADING, 7)), [], [AwaitReleased("a"), *LOAD_M], id="what leaves is waited for"),
        pytest.param(server(10, ("a", UNLOADING, 6)), [], LOAD_M, id="what leaves has room beside it"),
        pytest.param(
            server(10, ("a", UNLOADING, 4), ("b", UNLOADING, 4)), [], [AwaitReleased("a"), *LOAD_M], id="no more is waited for than needed"
        ),
        pytest.param(server(10, ("a", LOADING, 4)), [], [AwaitReady("a"), *LOAD_M], id="one load at a time"),
        pytest.param(
            server(10, ("a", LOADING, 7)), ["a"], [AwaitReady("a"), Unload("a"), AwaitReleased("a"), *LOAD_M], id="a victim that loads"
        ),
        pytest.param(server(1, ("m", READY, 4)), [], [], id="it is there"),
        pytest.param(server(1, ("m", LOADING, 4)), [], [AwaitReady("m")], id="its load is under way"),
        pytest.param(server(4, ("m", UNLOADING, 4)), [], [AwaitReleased("m"), *LOAD_M], id="it leaves"),
        pytest.param(server(40, ("m", UNLOADING, 4)), [], [AwaitReleased("m"), *LOAD_M], id="never beside itself"),
        pytest.param(server(4, ("m", READY, 4)), ["m"], [Unload("m"), AwaitReleased("m"), *LOAD_M], id="anew"),
    ],
)
def test_steps(server: Server, victims: Sequence[str], expected: list[Step]) -> None:
    assert steps(server, facts(), *victims) == expected


def test_what_cannot_fit_is_refused_before_its_first_step() -> None:
    full = server(10, ("a", READY, 7), ("b", READY, 2), ("c", UNLOADING, 5))
    message = r"model 'm' needs 9\.0 MiB on server 's': of its 10\.0 MiB 2\.0 MiB are taken without a, 1\.0 MiB too many"
    with pytest.raises(Overloaded, match=message):
        plan(full, facts(size=9), ["a"])
    with pytest.raises(Overloaded, match=r"7\.0 MiB are taken, 1\.0 MiB too many"):
        plan(server(10, ("a", READY, 7)), facts())


def test_a_budget_that_was_cut_refuses_loads_and_lets_victims_go() -> None:
    cut = server(6, ("a", READY, 5), ("b", READY, 5))
    with pytest.raises(Overloaded):
        plan(cut, facts(), ["a"])
    assert steps(cut, facts(), "a", "b")[-2:] == LOAD_M


def line(name: str, state: ModelState, reason: str = "", version: str = "1") -> ModelVersion:
    return ModelVersion(name, version, state, reason)


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        pytest.param([], {}, id="nothing"),
        pytest.param([line("a", UNAVAILABLE, version="")], {}, id="never loaded"),
        pytest.param([line("a", UNAVAILABLE, "unloaded")], {}, id="released"),
        pytest.param([line("a", UNAVAILABLE, "failed to initialise")], {}, id="failed"),
        pytest.param([line("a", UNLOADING)], {"a": UNLOADING}, id="not released yet"),
        pytest.param([line("a", READY), line("b", LOADING)], {"a": READY, "b": LOADING}, id="two models"),
        pytest.param([line("a", UNLOADING), line("a", READY, version="2")], {"a": READY}, id="an older version leaves"),
        pytest.param([line("a", READY), line("a", LOADING, version="2")], {"a": LOADING}, id="a newer version comes"),
        pytest.param([line("a", UNAVAILABLE, "unloaded"), line("a", UNLOADING, version="2")], {"a": UNLOADING}, id="one is left"),
    ],
)
def test_states_by_the_index(index: list[ModelVersion], expected: dict[str, ModelState]) -> None:
    assert states_of(index) == expected
    replicas = replicas_of(index, lambda name: 7, 3.0)
    assert {name: (replica.model, replica.state, replica.bytes, replica.since_s) for name, replica in replicas.items()} == {
        name: (name, state, 7, 3.0) for name, state in expected.items()
    }


NAMES = ["a", "b", "c", "d", "m"]
SERVERS = st.builds(
    lambda budget, replicas: server(budget, *((name, state, size) for name, (state, size) in replicas.items())),
    st.integers(1, 20),
    st.dictionaries(st.sampled_from(NAMES), st.tuples(st.sampled_from([READY, LOADING, UNLOADING]), st.integers(0, 9))),
)
VICTIMS = st.lists(st.sampled_from(NAMES), unique=True)


@given(server=SERVERS, victims=VICTIMS, size=st.integers(0, 9), ends=st.data())
def test_every_interrupted_prefix_can_be_planned_anew_and_no_step_promises_memory_twice(
    server: Server, victims: list[str], size: int, ends: st.DataObject
) -> None:
    model = facts(size=size)
    was_over = max(held_bytes(server.replicas.values()), server.budget_bytes)
    for attempt in range(10):
        left = ends.draw(st.integers(0, 12)) if attempt < 9 else 99
        try:
            under_way = plan(server, model, victims)
        except Overloaded:
            assume(attempt != 0)
            raise AssertionError("what fitted once does not fit any more") from None
        for step in _first(under_way, left):
            _carry_out(server, step)
            assert held_bytes(server.replicas.values()) <= was_over
            loading = [replica for replica in server.replicas.values() if replica.state is LOADING]
            assert not isinstance(step, Load) or (len(loading) == 1 and held_bytes(server.replicas.values()) <= server.budget_bytes)
        victims = [name for name in victims if name != "m"]  # loaded anew once is enough
    assert server.replicas["m"].state is READY


def _first(steps: Iterator[Step], count: int) -> Iterator[Step]:
    return (step for step, _ in zip(steps, range(count), strict=False))


def _carry_out(server: Server, step: Step) -> None:
    """Apply a step as Triton would."""
    match step:
        case Unload(name):
            server.replicas[name].state = UNLOADING
        case AwaitReleased(name):
            del server.replicas[name]
        case Load(name, size):
            assert name not in server.replicas
            server.replicas[name] = Replica(name, LOADING, size, 0.0)
        case AwaitReady(name):
            if name in server.replicas and server.replicas[name].state is LOADING:
                server.replicas[name].state = READY
