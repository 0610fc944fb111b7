from __future__ import annotations

import asyncio

import pytest

from control_plane.fleet.view.catalogue import FleetCatalogue
from control_plane.inference.dispatch.single_server import SingleServerDispatch
from control_plane.inference.model_configuration.transaction_policies import TransactionPolicies
from control_plane.triton.servers import Servers
from tests.aio import run
from tests.fakes import FakeUpstream
from tests.unit.fleet.fleet_bench import FleetBench, running

pytestmark = pytest.mark.virtual_time


class Bench:
    def __init__(self) -> None:
        self.servers, self.upstream, self.now_s = Servers(), FakeUpstream(), 0.0
        self.servers.up(self.upstream)
        self.upstream.control.decoupled = {"many": True, "one": False}
        self.kinds = TransactionPolicies(SingleServerDispatch(self.servers), now_s=lambda: self.now_s)

    def asks(self, name: str) -> bool | None:
        return run(self.kinds.is_decoupled(name))


def test_triton_is_asked_once_in_a_while() -> None:
    bench = Bench()
    assert [bench.asks(name) for name in ("many", "one", "many", "one")] == [True, False, True, False]
    assert bench.upstream.control.kinds_asked == ["many", "one"]
    bench.upstream.control.decoupled = {"many": False, "one": True}
    bench.now_s = 1.9
    assert (bench.asks("many"), bench.asks("one")) == (True, False)
    bench.now_s = 2.1
    assert (bench.asks("many"), bench.asks("one")) == (False, True)


def test_of_what_it_does_not_know_nothing_is_kept() -> None:
    bench = Bench()
    assert bench.asks("new") is None
    bench.upstream.control.decoupled["new"] = True
    assert bench.asks("new")


def test_without_a_server_nobody_knows() -> None:
    bench = Bench()
    bench.servers.down("starting")
    assert bench.asks("many") is None


async def test_what_is_loaded_anew_is_not_waited_for_but_asked_about_again() -> None:
    bench = Bench()
    bench.servers.under_repair.show({"many": asyncio.get_running_loop().time() + 5.0})
    began_s = asyncio.get_running_loop().time()
    assert await bench.kinds.is_decoupled("many") is None
    assert asyncio.get_running_loop().time() == began_s
    bench.servers.under_repair.show({})
    assert await bench.kinds.is_decoupled("many") is True


async def test_in_a_fleet_those_that_have_it_are_asked_and_nothing_is_loaded_or_used_for_it() -> None:
    async with running(FleetBench(servers=2)) as bench:
        bench.dispatch.catalogue = FleetCatalogue(bench.state, bench.servers)
        kinds = TransactionPolicies(bench.dispatch, now_s=bench.now_s)
        assert await kinds.is_decoupled("a") is None
        assert (bench.said, bench.state.uses["a"], bench.now_s()) == ([], 0, 0.0)
        has_it = await bench.use("a")
        uses = bench.state.uses["a"]
        bench.tritons[has_it].decoupled = {"a": True}
        assert await kinds.is_decoupled("a") is True
        assert bench.state.uses["a"] == uses
