from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI

from control_plane.admin.errors import answer_errors
from control_plane.admin.paths.fleet import add_fleet_path
from control_plane.admin.paths.models import add_model_paths
from control_plane.audit.trail import AuditTrail
from control_plane.core.model import summarise
from control_plane.fleet.domain.event import FleetEvent, FleetEventKind
from control_plane.fleet.domain.fleet import NEVER_S, Replica
from control_plane.fleet.domain.memory import DesiredState
from control_plane.fleet.fleet_service import FleetService
from control_plane.fleet.view.state import NO_BUDGET
from control_plane.models.domain.description import DescribedModel, ModelSpec
from tests.aio import run
from tests.fakes.stores.audit_log import FakeAuditLog
from tests.unit.admin.admin_bench import Bench
from tests.unit.fleet.fleet_bench import LOADING, READY, model
from tests.unit.fleet.view.state_bench import State

EVENT = FleetEvent(1e9, FleetEventKind.EVICTED, "b", "s0", "for 'a', which is asked for", 2.5)


@pytest.fixture
def state() -> State:
    return State(model("a"), model("b"), model("cold", 7, min_replicas=1))


class FakeTiers:
    """Fake of `models/tiers/warm_tier_manager` in which the model `cold` must be fetched."""

    def expected_fetch_s(self, model: str) -> float:
        return 4.5 if model == "cold" else 0.0

    def bytes_to_fetch(self, model: str) -> int | None:
        return 900 if model == "cold" else 0


def fleet_of(
    state: State, *, is_leader: bool = True, tiers: FakeTiers | None = None, notes: Callable[[], Sequence[str]] = tuple
) -> FleetService:
    state.events.latest.append(EVENT)
    loads = SimpleNamespace(why_quarantined=state.measurements.why_quarantined)
    router = SimpleNamespace(loads=loads)
    return cast("FleetService", SimpleNamespace(state=state, router=router, is_leader=is_leader, tiers=tiers, notes=notes))


def ask(fleet: FleetService, path: str, models: Any = None, *, method: str = "GET") -> Any:
    async def get() -> httpx.Response:
        app = FastAPI()
        answer_errors(app)
        add_fleet_path(app, fleet)
        add_model_paths(app, models, AuditTrail(FakeAuditLog()), fleet)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8080") as client:
            return await client.request(method, path)

    response = run(get())
    assert response.status_code == 200, response.text
    return response.json()


def show(state: State, **fields: Any) -> Any:
    return ask(fleet_of(state, **fields), "/fleet")


def test_servers_with_what_is_on_them(state: State) -> None:
    state.see(b=READY)
    claim = state.take("b")
    claim.replica.sequences = 3
    state.fleet.put_replica(state.fleet.servers["s0"], Replica("a", LOADING, 0, 100.0, 107.0, last_used_s=NEVER_S))
    state.at_s = 102.0
    first, second = show(state)["servers"]
    assert (first["name"], first["is_up"], first["budget_bytes"], first["held_bytes"]) == ("s0", True, 1000, 40)
    assert (second["name"], second["is_up"], second["replicas"]) == ("s1", False, [])
    assert first["replicas"] == [
        {"model": "a", "state": "LOADING", "bytes": 0, "in_flight": 0, "sequences": 0, "idle_s": None, "ready_in_s": 5.0},
        {"model": "b", "state": "READY", "bytes": 40, "in_flight": 1, "sequences": 3, "idle_s": 2.0, "ready_in_s": None},
    ]
    state.at_s = 200.0
    assert show(state)["servers"][0]["replicas"][0]["ready_in_s"] == 0.0
    claim.release(answered=False)


def test_what_becomes_of_servers(state: State) -> None:
    server = state.fleet.servers["s0"]
    server.pool, server.labels, server.is_ejected, server.is_draining = "short", {"gpu": "t4"}, True, True
    server.silent_from_s = 90.0
    first, second = show(state)["servers"]
    names = ("pool", "labels", "is_ejected", "is_draining", "is_silent")
    assert [first[name] for name in names] == ["short", {"gpu": "t4"}, True, True, True]
    assert [second[name] for name in names] == ["", {}, False, False, False]


def test_what_servers_lack(state: State) -> None:
    assert show(state)["notes"] == []
    assert show(state, notes=lambda: ["s0: no node"])["notes"] == ["s0: no node"]


@pytest.mark.parametrize("is_leader", [True, False])
def test_who_loads_and_unloads(state: State, is_leader: bool) -> None:
    assert show(state, is_leader=is_leader)["is_leader"] is is_leader


def test_what_is_cold_says_what_its_fetch_takes(state: State) -> None:
    a, _, cold = show(state, tiers=FakeTiers())["models"]
    assert (a["fetch_s"], a["fetch_bytes"], cold["fetch_s"], cold["fetch_bytes"]) == (0.0, 0, 4.5, 900)
    assert [(each["fetch_s"], each["fetch_bytes"]) for each in show(state)["models"]] == [(0.0, 0)] * 3


def test_what_only_a_store_of_another_host_has_is_as_large_as_nobody_knows(state: State) -> None:
    state.specs.describe({**state.specs.described, "cold": DescribedModel(ModelSpec("cold"), 0, fetch_s=7.0)})
    *others, cold = show(state)["models"]
    assert (cold["tier"], cold["fetch_s"], cold["fetch_bytes"]) == ("cold", 7.0, None)
    assert [(each["fetch_s"], each["fetch_bytes"]) for each in others] == [(0.0, 0)] * 2


def test_why_a_model_is_not_served(state: State) -> None:
    state.measurements.failed(state.fleet.models["a"], "no weights")
    state.apply_wishes({"b": DesiredState(is_suspended=True)})
    a, b, cold = show(state)["models"]
    assert [(each["why_quarantined"], each["is_suspended"]) for each in (a, b, cold)] == [("no weights", False), ("", True), ("", False)]
    assert a["quarantined_for_s"] > 0.0


def test_the_list_of_models_says_where_they_are(state: State) -> None:
    state.see(b=READY)
    models = SimpleNamespace(list_models=partial(as_awaitable, [summarise(name, []) for name in ("a", "b", "elsewhere")]))
    a, b, elsewhere = ask(fleet_of(state), "/models", models)
    assert [(each["tier"], each["servers"]) for each in (a, b, elsewhere)] == [("warm", []), ("hot", ["s0"]), (None, [])]


def test_a_release_is_the_fleets(state: State) -> None:
    released = list[str]()

    async def release(name: str) -> None:
        released.append(name)

    models = SimpleNamespace(get=lambda name: as_awaitable(summarise(name, [])), release=release)
    fleet = fleet_of(state)
    fleet.models = models  # type: ignore[assignment]
    assert ask(fleet, "/models/a/release", models, method="POST")["name"] == "a"
    assert released == ["a"]


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_load_everywhere_is_the_fleets(state: State, everywhere: bool) -> None:
    loaded = list[str]()

    async def load(name: str) -> None:
        loaded.append(name)

    async def load_everywhere(name: str) -> None:
        loaded.append(f"{name} everywhere")

    models = SimpleNamespace(get=lambda name: as_awaitable(summarise(name, [])), load=load, load_everywhere=load_everywhere)
    fleet = fleet_of(state)
    fleet.models = models  # type: ignore[assignment]
    ask(fleet, f"/models/a/load?everywhere={str(everywhere).lower()}", models, method="POST")
    assert loaded == ["a everywhere" if everywhere else "a"]


async def as_awaitable(value: Any) -> Any:
    return value


def test_no_bound_is_null(state: State) -> None:
    state.fleet.servers["s0"].budget_bytes = NO_BUDGET
    assert [server["budget_bytes"] for server in show(state)["servers"]] == [None, 1000]


def test_models_by_name_with_their_tier(state: State) -> None:
    state.see(b=READY, a=LOADING)
    state.count_requests("b")
    state.fleet.models["a"].quarantined_until_s = 103.0
    a, b, cold = show(state)["models"]
    assert (a["name"], a["tier"], a["servers"], a["quarantined_for_s"]) == ("a", "warm", ["s0"], 3.0)
    assert (b["name"], b["tier"], b["servers"], b["quarantined_for_s"]) == ("b", "hot", ["s0"], 0.0)
    assert (cold["tier"], cold["servers"], cold["resident_bytes"], cold["min_replicas"], cold["max_replicas"]) == ("warm", [], 7, 1, None)
    assert b["uses_per_s"] > 0.0 == cold["uses_per_s"]


def test_events_as_they_were(state: State) -> None:
    assert show(state)["events"] == [
        {"at_s": 1e9, "kind": "evicted", "model": "b", "server": "s0", "reason": "for 'a', which is asked for", "seconds": 2.5}
    ]


def test_where_there_is_no_fleet_it_says_how_to_have_one() -> None:
    status, body = Bench().ask("GET", "/fleet")
    assert status == 404
    assert "--servers, --memory-budget" in body["error"]


async def turns_of_an_answer(path: str, count: int) -> int:
    """How often others get their turn while a fleet of so many models is shown."""
    app, turns, names = FastAPI(), 0, [f"m{number}" for number in range(count)]
    fleet = fleet_of(State(*map(model, names)))
    add_fleet_path(app, fleet)
    listed = SimpleNamespace(list_models=partial(as_awaitable, [summarise(name, []) for name in names]))
    add_model_paths(app, listed, AuditTrail(FakeAuditLog()), fleet)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8080") as client:
        asked = asyncio.get_running_loop().create_task(client.get(path))
        while not asked.done():
            turns += 1
            await asyncio.sleep(0)
        found = (await asked).json()
        assert len(found["models"] if path == "/fleet" else found) == count
    return turns


@pytest.mark.parametrize("path", ["/fleet", "/models"])
async def test_thousands_of_models_hold_no_request_up(path: str) -> None:
    assert await turns_of_an_answer(path, 2000) >= await turns_of_an_answer(path, 1) + 15
