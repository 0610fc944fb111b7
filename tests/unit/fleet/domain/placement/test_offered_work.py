from __future__ import annotations

import pytest

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet, ModelFacts, Replica, Server
from control_plane.fleet.domain.placement.offered_work import OfferedWork, Requests, loading_s, pending_s, pools, serving
from control_plane.models.domain.description import ModelSpec

READY = ModelState.READY


def fleet(*places: tuple[str, str], service_s: float = 0.1, parallel: int = 1) -> Fleet:
    """(model, pool) of each replica, on a server of its own."""
    made = Fleet()
    for number, (model, pool) in enumerate(places):
        server = Server(f"s{number}", 1000, pool=pool, parallel=parallel)
        made.add_server(server)
        made.models[model] = ModelFacts(ModelSpec(model), 40, load_s=1.0, service_s=service_s)
        made.put_replica(server, Replica(model, READY, 40, 0.0))
    return made


def test_work_is_requests_times_their_service_time() -> None:
    it, one = OfferedWork(), fleet(("a", ""))
    it.count(Requests({"a": 30}), one)
    assert it.seconds == {"": pytest.approx(3.0)}
    it.count(Requests({"a": 40}), one)
    it.count(Requests({"a": 40}), one)
    assert it.seconds == {"": pytest.approx(4.0)}


def test_what_was_turned_away_counts_by_the_mean_of_the_others() -> None:
    it, one = OfferedWork(), fleet(("a", ""))
    it.count(Requests({"a": 10}, turned_away=30), one)
    assert it.seconds[""] == pytest.approx(4.0), "four times of what is done was asked for"
    it.count(Requests({"a": 10}, turned_away=40), one)
    assert it.seconds[""] == pytest.approx(5.0), "also where nothing was done since"


def test_it_is_split_by_where_the_replicas_are() -> None:
    it, two = OfferedWork(), fleet(("a", "long"), ("a", "short"), ("a", "short"))
    it.count(Requests({"a": 30}, turned_away=30), two)
    assert it.seconds == {"": 0.0, "long": pytest.approx(2.0), "short": pytest.approx(4.0)}


def test_a_server_that_serves_several_at_a_time_does_as_much_more() -> None:
    it = OfferedWork()
    it.count(Requests({"a": 40}), fleet(("a", ""), parallel=4))
    assert it.seconds[""] == pytest.approx(1.0)


def test_a_model_that_nobody_knows_or_that_is_loaded_nowhere() -> None:
    it, one = OfferedWork(), fleet(("a", "long"))
    one.models["cold"] = ModelFacts(ModelSpec("cold"), 40, load_s=1.0, service_s=0.5)
    it.count(Requests({"gone": 100, "cold": 2}), one)
    assert it.seconds == {"": pytest.approx(1.0), "long": 0.0}


def test_counts_that_began_anew_take_nothing_back() -> None:
    it, one = OfferedWork(), fleet(("a", ""))
    it.count(Requests({"a": 30}, turned_away=10), one)
    before = dict(it.seconds)
    it.count(Requests({"a": 1}), one)  # a worker was replaced
    assert it.seconds == before


def test_pools_are_never_none() -> None:
    assert pools(Fleet()) == [""]
    assert pools(fleet(("a", "long"))) == ["", "long"]
    it = OfferedWork()
    it.count(Requests({}), Fleet())
    assert it.seconds == {"": 0.0}


def test_pending_work_and_loads_of_a_pool() -> None:
    it = fleet(("a", "long"), ("b", "long"), ("c", ""), parallel=2)
    long_1, long_2, _ = it.servers.values()
    long_1.work_s, long_2.work_s, long_2.loads_until_s = 3.0, 1.0, 107.0
    assert (pending_s(it, "long"), pending_s(it, ""), pending_s(it, "none")) == (2.0, 0.0, 0.0)
    assert (loading_s(it, "long", 100.0), loading_s(it, "", 100.0)) == (7.0, 0.0)
    long_1.is_draining = True
    assert (serving(it, "long"), serving(it, "")) == (1, 1)


def test_models_that_are_counted_together_count_by_the_mean_of_the_others() -> None:
    it, one = OfferedWork(), fleet(("a", ""))
    it.count(Requests({"a": 10}, unnamed=30), one)
    assert it.seconds[""] == pytest.approx(4.0)


def test_a_model_that_loses_its_name_is_not_counted_again_with_those_that_have_none() -> None:
    it, one = OfferedWork(), fleet(("a", ""), ("b", ""))
    it.count(Requests({"a": 10, "b": 20}, unnamed=5), one)
    before = it.seconds[""]
    it.count(Requests({"a": 10}, unnamed=5 + 20 + 3), one)
    assert it.seconds[""] - before == pytest.approx(0.3)
