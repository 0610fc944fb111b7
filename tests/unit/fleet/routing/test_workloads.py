from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from control_plane.core.infer_call import InferCall
from control_plane.fleet.domain.fleet import Fleet, ModelFacts, Server
from control_plane.fleet.domain.routing.workload import WorkloadLimits
from control_plane.fleet.routing.workloads import RequestClassifier
from control_plane.models.domain.description import ModelSpec

LIMITS = WorkloadLimits(long_units=50.0, long_rows=64, long_bytes=1000, urgent_from=1)


@dataclass(frozen=True)
class Asked:
    """`fleet/routing/workloads.RoutedRequest`."""

    units: float | None = None
    pool: str = ""
    rows: int = 1
    priority: int = 0


def fleet(*pools: str) -> Fleet:
    made = Fleet(models={"m": ModelFacts(ModelSpec("m"), 1, 1.0, 0.01)})
    for number, pool in enumerate(pools):
        made.add_server(Server(f"s{number}", 1, pool=pool))
    return made


def workloads(*pools: str, salt: int = 1) -> RequestClassifier:
    return RequestClassifier(fleet(*pools), limits=LIMITS, draw=Random(salt).random)


def call(*, text_bytes: int = 0, elements: int = 0, sequence_id: str = "", model: str = "m") -> InferCall:
    return InferCall(model, "", "", (), text_bytes=text_bytes, elements=elements, sequence_id=sequence_id)


ALL = ("short", "long", "short-urgent")


@pytest.mark.parametrize(
    ("pools", "asked", "what", "expected"),
    [
        pytest.param((), Asked(1.0), call(), None, id="no server"),
        pytest.param(("", ""), Asked(1.0, "short"), call(), None, id="no pools"),
        pytest.param(ALL, Asked(1.0), call(), "short", id="short by its cost"),
        pytest.param(ALL, Asked(51.0), call(), "long", id="long by its cost"),
        pytest.param(ALL, Asked(rows=65), call(), "long", id="long by its rows"),
        pytest.param(ALL, Asked(), call(text_bytes=1001), "long", id="long by its text"),
        pytest.param(ALL, None, call(elements=251), "long", id="long by its numbers, of nobody in particular"),
        pytest.param(ALL, Asked(1.0, priority=1), call(), "short-urgent", id="an urgent tenant's"),
        pytest.param(ALL, Asked(51.0, priority=1), call(), "long", id="an urgent tenant's, and no pool for that"),
        pytest.param(ALL, Asked(1.0, "long"), call(), "long", id="as its route says"),
        pytest.param(("eu", "us"), Asked(1.0, "us"), call(), "us", id="a pool of the operator's own"),
        pytest.param(("eu", "us"), Asked(1.0), call(), None, id="pools that only routes name"),
        pytest.param(("eu", ""), Asked(1.0), call(), "", id="servers for whatever comes, beside a pool that only routes name"),
        pytest.param(("eu",), Asked(1.0, "us"), call(), None, id="a pool that is not there"),
    ],
)
def test_where_it_goes(pools: tuple[str, ...], asked: Asked | None, what: InferCall, expected: str | None) -> None:
    assert workloads(*pools).hint(what, asked).pool == expected


@pytest.mark.parametrize("field", ["is_up", "is_draining", "is_ejected"])
def test_a_pool_without_a_server_for_it_is_none(field: str) -> None:
    there = fleet("short", "long")
    found = RequestClassifier(there, limits=LIMITS)
    setattr(there.servers["s0"], field, field != "is_up")
    assert found.hint(call(), Asked(1.0)).pool is None
    assert found.hint(call(), Asked(1.0, "short")).pool is None


def test_what_is_long_is_learned_of_each_model() -> None:
    found = workloads("short", "long")
    costs = [1.0] * 19 + [20.0]
    for number in range(10_000):
        found.hint(call(), Asked(costs[number % 20]))
    assert found.hint(call(), Asked(20.0)).pool == "long"
    assert found.hint(call(), Asked(1.0)).pool == "short"
    assert found.hint(call(model="another"), Asked(20.0)).pool == "short"


@pytest.mark.parametrize("units", [1.0, 49.0, 500.0])
def test_requests_that_cost_all_the_same_are_not_parted(units: float) -> None:
    found, random = workloads("short", "long"), Random(1)
    pools = [found.hint(call(), Asked(units * random.uniform(0.95, 1.05))).pool for _ in range(4000)]
    assert set(pools[-1000:]) == {"short"}


def test_names_that_no_model_has_leave_nothing_behind() -> None:
    found = workloads("short", "long")
    for _ in range(10_000):
        found.hint(call(model="made-up"), Asked(0.001))
    assert found.hint(call(model="made-up"), Asked(49.0)).pool == "short"


# What is alike


def test_a_conversation_is_alike_for_all_gateways_whatever_it_sends() -> None:
    one, other = workloads(salt=1), workloads(salt=2)
    affinity_key = one.hint(call(sequence_id="7", text_bytes=10), None).affinity_key
    assert other.hint(call(sequence_id="7", text_bytes=9000, model="m2"), None).affinity_key == affinity_key
    assert one.hint(call(sequence_id="8", text_bytes=10), None).affinity_key != affinity_key


def test_else_it_is_about_as_long_and_for_the_same_model() -> None:
    found = workloads()
    affinity_key = found.hint(call(text_bytes=130), None).affinity_key
    assert found.hint(call(text_bytes=250), None).affinity_key == affinity_key
    assert found.hint(call(elements=40), None).affinity_key == affinity_key
    assert found.hint(call(text_bytes=500), None).affinity_key != affinity_key
    assert found.hint(call(text_bytes=130, model="m2"), None).affinity_key != affinity_key


def test_gateways_do_not_all_send_the_usual_length_to_the_same_server() -> None:
    assert len({workloads(salt=salt).hint(call(), None).affinity_key for salt in range(20)}) == 20
