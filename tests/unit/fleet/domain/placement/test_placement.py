from __future__ import annotations

from dataclasses import replace

import pytest

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet, Replica
from control_plane.fleet.domain.placement.placement import Obstacle, Placement, Refusal, excess, place, victims_on
from control_plane.fleet.domain.routing.routing import choose
from tests.unit.fleet.domain.fleets import NOW_S, model, server
from tests.unit.fleet.domain.placement.placement_bench import LIMITS, fleet_of, placed, refused

# Whose turn has come


def test_victims_of_an_announced_load_are_those_of_a_load_that_is_not_there_yet() -> None:
    fleet = fleet_of(seldom=0.001, often=1.0)
    at = server(fleet, "s", "seldom", "often")
    before = placed(fleet).victims
    fleet.put_replica(at, Replica("new", ModelState.LOADING, 0, NOW_S))
    fleet.models["new"].spec = replace(fleet.models["new"].spec, max_replicas=1)
    assert victims_on(fleet, at, "new", NOW_S, limits=LIMITS) == before == ("seldom",)
    assert list(at.replicas) == ["seldom", "often", "new"]
    at.replicas["seldom"].in_flight = at.replicas["often"].in_flight = 1
    assert victims_on(fleet, at, "new", NOW_S, limits=LIMITS) is None


# Where


def test_an_idle_server_is_taken_before_a_busy_one() -> None:
    fleet = fleet_of()
    for name, work_s in {"busy": 5.0, "idle": 0.0, "busier": 9.0}.items():
        server(fleet, name, work_s=work_s)
    assert placed(fleet) == Placement("idle", (), NOW_S + 1.0, pytest.approx(1.01), pytest.approx(1.01))


def test_a_server_without_loads_is_taken_before_one_that_loads() -> None:
    fleet = fleet_of()
    server(fleet, "loading").loads_until_s = NOW_S + 3.0
    server(fleet, "busy", work_s=2.5)
    assert placed(fleet).server == "busy"
    fleet.remove_server("busy")
    assert placed(fleet).ready_s == NOW_S + 4.0


def test_a_server_on_which_its_load_has_failed_is_taken_if_there_is_no_other() -> None:
    fleet = fleet_of()
    failed = server(fleet, "failed")
    server(fleet, "busy", work_s=5.0)
    failed.failed_s["new"] = NOW_S - 599.0
    assert placed(fleet).server == "busy"
    assert placed(fleet, now_s=NOW_S + 2.0).server == "failed"
    fleet.remove_server("busy")
    assert placed(fleet).server == "failed"


def test_a_server_on_which_the_loads_of_several_have_failed_takes_none_that_others_could() -> None:
    fleet = fleet_of()
    sick = server(fleet, "sick")
    server(fleet, "busy", work_s=5.0)
    sick.failed_s, sick.failed_only_here = {"a": NOW_S - 9.0, "b": NOW_S - 5.0}, {"a", "b"}
    assert placed(fleet).server == "sick"
    sick.failed_only_here.add("c")
    assert placed(fleet).server == "busy"
    assert placed(fleet, now_s=NOW_S + 600.0).server == "sick"


def test_for_a_model_on_trial_one_more_server_makes_room() -> None:
    fleet = fleet_of()
    fleet.models["new"].is_on_trial = True
    server(fleet, "other", "rare", budget=1)
    assert refused(fleet).obstacle is Obstacle.ON_TRIAL, "after a restart nobody knows where it failed"
    tried = server(fleet, "tried", "kept", budget=1)
    tried.replicas["kept"].in_flight = 1
    fleet.models["new"].failed_only_on = "tried"
    assert placed(fleet).victims == ("rare",)
    fleet.models["new"].failed_only_on = ""  # it has failed there, too
    assert refused(fleet).obstacle is Obstacle.ON_TRIAL


def test_where_loads_stop_all_else_work_comes_before_the_load() -> None:
    fleet = fleet_of()
    server(fleet, "a", work_s=2.0).serves_while_loading = False
    assert placed(fleet).ready_s == NOW_S + 3.0


def test_free_memory_is_taken_before_a_model_goes() -> None:
    fleet = fleet_of(used=5.0)
    server(fleet, "full", "used", "other")
    server(fleet, "free", "another", work_s=0.5)
    assert (placed(fleet).server, placed(fleet).victims) == ("free", ())


def test_a_busier_server_is_taken_if_that_spares_a_likelier_model() -> None:
    fleet = fleet_of(used=5.0, popular=5.0, liked=5.0, rare=0.0001)
    server(fleet, "idle", "used", "popular")
    server(fleet, "busy", "rare", "liked", work_s=0.5)
    assert (placed(fleet).server, placed(fleet).victims) == ("busy", ("rare",))


def test_only_free_memory_is_taken_where_nothing_may_be_evicted() -> None:
    fleet = fleet_of(rare=0.0001)
    server(fleet, "full", "rare", budget=1)
    assert isinstance(place(fleet, "new", NOW_S, limits=replace(LIMITS, evicts=False)), Refusal)
    server(fleet, "busy", "rare", work_s=500.0)
    assert placed(fleet, limits=replace(LIMITS, evicts=False)).server == "busy"


def test_models_are_spread_over_equal_servers() -> None:
    fleet = Fleet()
    for number in range(8):
        server(fleet, f"s{number}")
    for number in range(50):
        model(fleet, f"m{number}")
    assert len({placed(fleet, f"m{number}").server for number in range(50)}) == 8


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        pytest.param("long", "c", id="its own"),
        pytest.param("other", "e", id="no server is in it: what is for everything"),
        pytest.param("down", "e", id="those in it are down: what is for everything"),
        pytest.param(None, "a", id="none in particular"),
        pytest.param("", "e", id="whatever is for everything"),
    ],
)
def test_pools(pool: str | None, expected: str) -> None:
    fleet = fleet_of()
    for number, (name, its_pool) in enumerate({"a": "short", "b": "short", "c": "long", "d": "down", "e": ""}.items()):
        server(fleet, name, work_s=5.0 * number).pool = its_pool
    fleet.servers["d"].is_up = False
    assert placed(fleet, pool=pool).server == expected


@pytest.mark.parametrize("why", ["too small", "in use"])
def test_where_a_pool_has_no_room_other_servers_will_do(why: str) -> None:
    fleet = fleet_of()
    for name, pool in {"a": "short", "b": "long"}.items():
        server(fleet, name, "used", budget=1).pool = pool
    if why == "too small":
        fleet.servers["a"].budget_bytes = 0
    else:
        _copy_on(fleet, "a").in_flight = 1
    assert placed(fleet, pool="short").server == "b"
    refusal = place(fleet, "new", NOW_S, pool="short", limits=replace(LIMITS, stays_in_pool=True))
    assert isinstance(refusal, Refusal)
    assert refusal.obstacle is (Obstacle.TOO_LARGE if why == "too small" else Obstacle.IN_USE)
    _copy_on(fleet, "b").in_flight = 1
    found = place(fleet, "new", NOW_S, pool="short", limits=LIMITS)
    assert isinstance(found, Refusal)
    assert found.obstacle is Obstacle.IN_USE


def test_for_a_request_of_a_pool_without_room_one_replica_elsewhere_is_as_good_as_another() -> None:
    fleet = fleet_of()
    for name, pool in {"a": "short", "b": "long", "c": "long"}.items():
        server(fleet, name).pool = pool
    fleet.servers["a"].budget_bytes = 0
    server(fleet, "b", "new").pool = "long"
    for work_s, obstacle in {0.5: Obstacle.NOT_SOONER, 1.5: None}.items():
        fleet.servers["b"].work_s = work_s
        found = place(fleet, "new", NOW_S, pool="short", must_beat_s=choose(fleet, "new", NOW_S, 0.0, pool="short").expected_s)
        assert (found.obstacle if isinstance(found, Refusal) else None) is obstacle


def _copy_on(fleet: Fleet, name: str) -> Replica:
    (replica,) = fleet.servers[name].replicas.values()
    return replica


def test_in_a_large_fleet_all_servers_are_looked_at_only_if_need_be() -> None:
    fleet = fleet_of()
    for number in range(100):
        server(fleet, f"s{number}", "a", "b").replicas["a"].in_flight = 1
        fleet.servers[f"s{number}"].replicas["b"].in_flight = 1
    fleet.servers["s77"].replicas["b"].in_flight = 0
    assert (placed(fleet, limits=replace(LIMITS, sample_size=4)).server, placed(fleet).victims) == ("s77", ("b",))


# What goes


@pytest.mark.parametrize(
    ("prepare", "victims"),
    [
        pytest.param(lambda fleet: None, ("rare",), id="what is used least"),
        pytest.param(lambda fleet: setattr(fleet.models["rare"], "load_s", 100.0), ("often",), id="unless it takes long to load"),
        pytest.param(lambda fleet: setattr(_replica(fleet, "rare"), "in_flight", 1), ("often",), id="unless it is in use"),
        pytest.param(lambda fleet: setattr(_replica(fleet, "rare"), "sequences", 1), ("often",), id="unless it holds a sequence"),
        pytest.param(lambda fleet: setattr(_replica(fleet, "rare"), "since_s", NOW_S - 1.5), ("often",), id="unless it is new"),
        pytest.param(lambda fleet: setattr(_replica(fleet, "rare"), "since_s", NOW_S - 2.0), ("rare",), id="but not for long"),
        pytest.param(lambda fleet: setattr(_replica(fleet, "rare"), "is_step", True), ("often",), id="unless an ensemble needs it"),
        pytest.param(lambda fleet: _pin(fleet, "rare"), ("often",), id="unless it is pinned"),
        pytest.param(lambda fleet: fleet.models.pop("often"), ("often",), id="first what nobody knows any more"),
    ],
)
def test_what_goes(prepare: object, victims: tuple[str, ...]) -> None:
    fleet = fleet_of(often=0.5, rare=0.1)
    server(fleet, "s", "often", "rare")
    assert callable(prepare)
    prepare(fleet)
    assert placed(fleet).victims == victims


def _replica(fleet: Fleet, name: str) -> Replica:
    return fleet.servers["s"].replicas[name]


def _pin(fleet: Fleet, name: str, replicas: int = 1) -> None:
    fleet.models[name].spec = replace(fleet.models[name].spec, min_replicas=replicas)


def test_a_pinned_model_may_lose_a_replica_that_it_need_not_have() -> None:
    fleet = fleet_of(often=0.5, rare=0.001)
    server(fleet, "s", "often", "rare")
    _pin(fleet, "rare")
    server(fleet, "far", "rare", budget=1, work_s=1e6)
    assert placed(fleet).victims == ("rare",)


def test_a_pinned_model_stays_on_an_ejected_server_too() -> None:
    """The server may recover before the model is loaded elsewhere, and no other server has it."""
    fleet = fleet_of(often=0.5, rare=0.001)
    at = server(fleet, "s", "often", "rare")
    _pin(fleet, "rare")
    at.is_ejected, at.budget_bytes = True, 1
    assert excess(fleet, at, NOW_S) == ("often",)


def test_replicas_that_the_others_can_do_without_go_first() -> None:
    fleet = fleet_of(often=2.0, rare=0.1)
    server(fleet, "s", "often", "rare")
    server(fleet, "far", "often", budget=1, work_s=1e6)
    assert placed(fleet).victims == ("often",)


def test_replicas_that_the_others_need_do_not() -> None:
    fleet = fleet_of(often=90.0, rare=0.1)
    server(fleet, "s", "often", "rare")
    server(fleet, "far", "often", budget=1, work_s=1e6)
    assert placed(fleet).victims == ("rare",)


def test_replicas_that_the_others_would_seldom_need_count_little() -> None:
    """The other replica would be busy for a third of the time, so one of nine uses would be missed: 0.7 per
    second, against 1.4."""
    fleet = fleet_of(often=30.0, sometimes=1.0)
    fleet.models["often"].last_used_s = fleet.models["sometimes"].last_used_s = NOW_S - 0.5
    server(fleet, "s", "often", "sometimes")
    server(fleet, "far", "often", budget=1, work_s=1e6)
    fleet.models["new"].refused_since_s = 0.0
    assert placed(fleet).victims == ("often",)


def test_a_large_model_goes_before_small_ones_that_are_used_a_little_less() -> None:
    fleet = fleet_of()
    for name, size, rate in (("large", 4, 0.03), ("small", 2, 0.02), ("other", 2, 0.02)):
        model(fleet, name, uses_per_s=rate, size=size)
    fleet.models["new"].resident_bytes = 4
    server(fleet, "s", "large", "small", "other", budget=8)
    assert placed(fleet).victims == ("large",)


def test_what_is_missed_least_goes_first() -> None:
    fleet = fleet_of(often=0.5, rare=0.1, never=0.0)
    fleet.models["new"].resident_bytes = 3
    server(fleet, "s", "often", "rare", "never", budget=3)
    fleet.models["new"].refused_since_s = 0.0
    assert placed(fleet).victims == ("never", "rare", "often")


def test_the_higher_priority_stays() -> None:
    fleet = fleet_of(a=0.1, b=0.1)
    fleet.models["a"].spec = replace(fleet.models["a"].spec, priority=1)
    server(fleet, "s", "a", "b")
    assert placed(fleet).victims == ("b",)


def test_no_more_goes_than_has_to() -> None:
    fleet = fleet_of()
    for name, size, rate in (("tiny", 1, 0.001), ("small", 2, 0.01), ("large", 4, 0.04)):
        model(fleet, name, uses_per_s=rate, size=size)
    fleet.models["new"].resident_bytes = 4
    server(fleet, "s", "tiny", "small", "large", budget=7)
    assert placed(fleet).victims == ("large",)


def test_memory_on_its_way_out_counts_as_free() -> None:
    fleet = fleet_of(used=1.0)
    leaving = server(fleet, "s", "used", "leaving").replicas["leaving"]
    leaving.state, leaving.since_s = ModelState.UNLOADING, NOW_S - 50.0
    assert placed(fleet).victims == ()


def test_memory_that_has_been_on_its_way_out_for_a_minute_does_not() -> None:
    fleet = fleet_of(used=1.0)
    leaving = server(fleet, "s", "used", "leaving").replicas["leaving"]
    leaving.state, leaving.since_s = ModelState.UNLOADING, NOW_S - 60.0
    assert placed(fleet).victims == ("used",)


# Whether


@pytest.mark.parametrize(
    ("prepare", "obstacle", "retry_after_s"),
    [
        pytest.param(lambda fleet: fleet.models.pop("new"), Obstacle.UNKNOWN, 30.0, id="nobody knows it"),
        pytest.param(
            lambda fleet: setattr(fleet.models["new"], "quarantined_until_s", NOW_S + 9.0), Obstacle.QUARANTINED, 9.0, id="it failed"
        ),
        pytest.param(lambda fleet: fleet.remove_server("s"), Obstacle.NO_SERVER, 30.0, id="no server"),
        pytest.param(lambda fleet: setattr(fleet.servers["s"], "is_up", False), Obstacle.NO_SERVER, 30.0, id="the server is down"),
        pytest.param(lambda fleet: setattr(fleet.servers["s"], "is_ejected", True), Obstacle.NO_SERVER, 30.0, id="the server is ejected"),
        pytest.param(lambda fleet: setattr(fleet.models["new"], "resident_bytes", 3), Obstacle.TOO_LARGE, 30.0, id="larger than any"),
        pytest.param(lambda fleet: setattr(_replica(fleet, "used"), "in_flight", 1), Obstacle.IN_USE, 0.01, id="all is in use"),
        pytest.param(lambda fleet: setattr(_replica(fleet, "used"), "since_s", NOW_S - 0.5), Obstacle.IN_USE, 1.5, id="all is new"),
        pytest.param(lambda fleet: _pin(fleet, "used"), Obstacle.IN_USE, 30.0, id="all is pinned"),
        pytest.param(
            lambda fleet: setattr(fleet.servers["s"], "loads_until_s", NOW_S + 65.0), Obstacle.LATE, 5.0, id="too many loads before"
        ),
    ],
)
def test_refusals_say_when_to_come_again(prepare: object, obstacle: Obstacle, retry_after_s: float) -> None:
    fleet = fleet_of(used=0.1)
    server(fleet, "s", "used", budget=1)
    assert callable(prepare)
    prepare(fleet)
    refusal = refused(fleet)
    assert (refusal.obstacle, refusal.retry_after_s) == (obstacle, pytest.approx(retry_after_s))
    assert "'new'" in refusal.text


@pytest.mark.parametrize(
    ("labels", "missing"),
    [
        pytest.param({"gpu": "h200"}, None, id="a server has it"),
        pytest.param({"gpu": "h200", "disk": "nvme"}, None, id="a server has both"),
        pytest.param({"gpu": "h100"}, "gpu=h100", id="another value"),
        pytest.param({"gpu": "h200", "rack": "7"}, "rack=7", id="one that no server has"),
        pytest.param({"gpu": "h200", "zone": "b"}, "gpu=h200, zone=b", id="each is somewhere, but not both on one"),
        pytest.param({"zone": "c"}, "zone=c", id="a server has it that is down"),
    ],
)
def test_labels(labels: dict[str, str], missing: str | None) -> None:
    fleet = fleet_of()
    for name, its_labels in {"x": {}, "a": {"gpu": "h200", "disk": "nvme"}, "b": {"zone": "b"}, "down": {"zone": "c"}}.items():
        server(fleet, name).labels = its_labels
    fleet.servers["down"].is_up = False
    fleet.models["new"].spec = replace(fleet.models["new"].spec, server_labels=labels)
    if missing is None:
        assert placed(fleet, pool="elsewhere").server == "a"
    else:
        refusal = refused(fleet)
        assert refusal.obstacle is Obstacle.NO_SERVER
        assert refusal.text == f"no server that is up has the labels that 'new' needs: {missing}"


def test_labels_go_before_pools() -> None:
    fleet = fleet_of()
    for name, pool in {"a": "short", "b": "long"}.items():
        server(fleet, name).pool = pool
    fleet.servers["b"].labels = {"gpu": "h200"}
    fleet.models["new"].spec = replace(fleet.models["new"].spec, server_labels={"gpu": "h200"})
    assert placed(fleet, pool="short").server == "b"


def test_a_server_that_leaves_takes_nothing_and_what_is_there_does_not_stay() -> None:
    fleet = fleet_of()
    fleet.models["new"].spec = replace(fleet.models["new"].spec, max_replicas=1)
    server(fleet, "leaves", "new").is_draining = True
    server(fleet, "leaves too").is_draining = True
    assert refused(fleet).obstacle is Obstacle.NO_SERVER
    server(fleet, "stays", work_s=9.0)
    assert placed(fleet).server == "stays"


def test_a_replica_that_leaves_does_not_make_up_for_a_pinned_one() -> None:
    fleet = fleet_of(pinned=1.0)
    _pin(fleet, "pinned")
    server(fleet, "stays", "pinned", budget=1)
    server(fleet, "leaves", "pinned").is_draining = True
    assert refused(fleet).obstacle is Obstacle.IN_USE


def test_a_model_that_is_still_being_unloaded_is_about_to_have_room() -> None:
    fleet = fleet_of()
    server(fleet, "s", "new").replicas["new"].state = ModelState.UNLOADING
    assert refused(fleet) == Refusal(Obstacle.IN_USE, "'new' is still being unloaded", 0.01)
    fleet.servers["s"].replicas["new"].state = ModelState.READY
    assert refused(fleet).obstacle is Obstacle.NO_SERVER
