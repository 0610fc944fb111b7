from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from control_plane.core.errors import ModelLoadFailed, Overloaded, UpstreamUnavailable
from control_plane.core.model import ModelState, ModelVersion
from control_plane.fleet.domain.memory import Measured
from control_plane.fleet.view.catalogue import FleetCatalogue, asked_of_all, best_lines
from control_plane.triton.ports import Upstream
from tests.aio import run, run_in_virtual_time
from tests.fakes import FakeUpstream, server_of
from tests.unit.fleet.fleet_bench import LOADING, READY, UNLOADING, FleetBench, model, running

pytestmark = pytest.mark.virtual_time

UNAVAILABLE = ModelState.UNAVAILABLE


def line(name: str, state: ModelState, version: str = "1", reason: str = "") -> ModelVersion:
    return ModelVersion(name, version, state, reason)


def catalogue(bench: FleetBench) -> FleetCatalogue:
    return FleetCatalogue(bench.state, bench.servers)


@pytest.mark.parametrize(
    ("lines", "best"),
    [
        pytest.param([line("a", UNAVAILABLE, reason="unloaded"), line("a", READY)], [line("a", READY)], id="ready anywhere"),
        pytest.param([line("a", UNLOADING), line("a", LOADING)], [line("a", LOADING)], id="on its way before on its way out"),
        pytest.param(
            [line("a", UNAVAILABLE, reason="unloaded"), line("a", UNAVAILABLE, reason="no such file")],
            [line("a", UNAVAILABLE, reason="no such file")],
            id="a failure says why",
        ),
        pytest.param([line("a", UNAVAILABLE, ""), line("a", READY)], [line("a", READY)], id="never loaded on one"),
        pytest.param([line("a", UNAVAILABLE, ""), line("a", UNAVAILABLE, "")], [line("a", UNAVAILABLE, "")], id="never loaded on any"),
        pytest.param(
            [line("a", UNAVAILABLE, reason="unloaded"), line("a", UNAVAILABLE, "", "no such file")],
            [line("a", UNAVAILABLE, "", "no such file"), line("a", UNAVAILABLE, reason="unloaded")],
            id="also a failure of no version",
        ),
        pytest.param([line("a", READY), line("a", UNAVAILABLE, "", "no such file")], [line("a", READY)], id="but not where it is there"),
        pytest.param([line("a", READY), line("a", READY, "2")], [line("a", READY), line("a", READY, "2")], id="each version"),
        pytest.param([line("a", READY), line("b", LOADING)], [line("a", READY), line("b", LOADING)], id="each model"),
    ],
)
def test_of_several_servers_the_best_line_stands(lines: list[ModelVersion], best: list[ModelVersion]) -> None:
    assert best_lines(lines) == best
    assert sorted(best_lines(lines[::-1]), key=repr) == sorted(best, key=repr)


async def test_the_index_lists_what_is_anywhere_and_what_could_be() -> None:
    bench = FleetBench(servers=2)
    bench.tritons["s0"].states = {"a": READY}
    bench.tritons["s1"].states = {"b": LOADING, "a": UNAVAILABLE, "other": READY}
    named = [(each.name, each.version, each.state) for each in await catalogue(bench).index()]
    assert named == [
        ("a", "1", READY),
        ("b", "1", LOADING),
        ("c", "", UNAVAILABLE),
        ("d", "", UNAVAILABLE),
        ("other", "1", READY),
    ]
    assert {each.name for each in await catalogue(bench).index(only_ready=True)} == {"a", "other"}


class Waiting(dict[str, Measured]):
    """Records of which a look waits until the event loop has gone on."""

    def __init__(self) -> None:
        super().__init__()
        self.is_looked_at, self.has_gone_on = threading.Event(), threading.Event()

    def get(self, name: str, default: Any = None) -> Any:
        self.is_looked_at.set()
        assert self.has_gone_on.wait(30)
        return default


def test_the_index_is_put_together_beside_the_loop() -> None:
    async def main() -> None:
        bench, records = FleetBench(servers=2), Waiting()
        bench.state.measurements.known = records
        asked = asyncio.get_running_loop().create_task(catalogue(bench).index())
        while not records.is_looked_at.is_set():
            await asyncio.sleep(0)
        records.has_gone_on.set()
        assert [each.name for each in await asked] == ["a", "b", "c", "d"]

    run(main())  # in real time: else there are no threads


async def test_a_server_that_does_not_answer_is_left_out_unless_none_does() -> None:
    bench = FleetBench(servers=2)
    bench.tritons["s1"].states = {"a": READY}
    bench.tritons["s0"].live = False
    assert [each.name for each in await catalogue(bench).index(only_ready=True)] == ["a"]
    bench.tritons["s1"].live = False
    with pytest.raises(UpstreamUnavailable):
        await catalogue(bench).index()
    for name in ("s0", "s1"):
        bench.kill(name)
    with pytest.raises(UpstreamUnavailable, match="has crashed"):
        await catalogue(bench).index()
    with pytest.raises(UpstreamUnavailable, match="has crashed"):
        catalogue(bench).servers_of("")


async def test_what_would_be_served_is_ready_loaded_or_not() -> None:
    async with running(FleetBench(model("a"), model("huge", 101), servers=2)) as bench:
        found = catalogue(bench)
        assert (found.is_ready("a"), found.is_ready("huge"), found.is_ready("nonesuch")) == (True, False, False)
        assert bench.said == [], "nobody loads it for being asked"
        assert bench.state.fleet.models["a"].rate_fast == 0.0, "nor was it used"
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bench.use("a"))
            await asyncio.sleep(0.5)
            assert found.is_ready("a"), "it is being loaded"
        assert found.is_ready("a")


async def test_not_so_while_it_is_not_tried_again_or_nobody_could_take_it() -> None:
    bench = FleetBench(servers=1)
    found, facts = catalogue(bench), bench.state.fleet.models["a"]
    facts.quarantined_until_s = bench.now_s() + 5.0
    assert not found.is_ready("a")
    bench.tritons["s0"].states = {"a": READY}
    await bench.reconciler.tick()
    assert found.is_ready("a"), "of another replica that failed"
    bench.kill("s0")
    facts.quarantined_until_s = 0.0
    assert not found.is_ready("a"), "no server is up"
    bench.bring_up("s0")
    assert found.is_ready("a")


async def test_one_that_has_failed_is_ready_when_it_may_be_tried_again_but_not_while_it_is() -> None:
    async with running(FleetBench(model("a"))) as bench:
        found, failure = catalogue(bench), ModelLoadFailed("no weights")
        bench.tritons["s0"].failures["a"] = failure
        with pytest.raises(Overloaded):
            await bench.use("a", 2.5)
        assert not found.is_ready("a"), "in quarantine"
        await asyncio.sleep(10.0)
        assert found.is_ready("a"), "the next request has it tried again"
        del bench.tritons["s0"].failures["a"]
        with pytest.raises(Overloaded, match="is being tried again"):
            await bench.use("a")
        assert not found.is_ready("a"), "nobody knows"
        await asyncio.sleep(1.5)
        assert found.is_ready("a")


async def test_one_that_waits_for_room_is_ready() -> None:
    async with running(FleetBench(model("a", 90), model("b", 90))) as bench:
        claim = await bench.claim("a")
        assert catalogue(bench).is_ready("b")
        claim.release(answered=True)


async def test_a_model_may_be_computed_twice_where_its_configuration_says_so() -> None:
    said = model("a", 10)
    found = catalogue(FleetBench(replace(said, spec=replace(said.spec, is_repeatable=True)), model("b", 10)))
    assert [found.is_repeatable(name) for name in ("a", "b", "nonesuch")] == [True, False, False]


async def test_servers_that_can_tell_of_a_model_have_it_ready() -> None:
    bench = FleetBench(servers=3)
    bench.tritons["s0"].states = {"a": READY}
    bench.tritons["s1"].states = {"a": LOADING}
    bench.tritons["s2"].states = {"a": READY}
    await bench.reconciler.tick()
    found, members = catalogue(bench), bench.servers.members
    assert found.servers_of("a") == [members["s0"], members["s2"]]
    assert (found.servers_of("b"), found.servers_of("nonesuch")) == ([], [])
    assert found.servers_of("") == list(members.values())
    members["s0"].fell_silent()
    assert found.servers_of("a") == [members["s2"]]
    assert found.servers_of("") == [members["s1"], members["s2"]]
    assert (found.knows("b"), found.knows("nonesuch")) == (True, False)


def test_asked_of_all_a_defect_is_no_missing_server() -> None:
    async def fail(server: Upstream) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(asked_of_all([server_of(FakeUpstream())], fail))
    assert run(asked_of_all([], fail)) == []


def test_a_model_has_an_idle_server_where_one_that_has_it_loaded_does_nothing() -> None:
    async def main() -> None:
        bench = FleetBench(servers=2)
        told = catalogue(bench).has_idle_server
        assert (told("a"), catalogue(bench).is_loaded("a"), told("no such model")) == (None, False, None)
        async with running(bench):
            first, other = await bench.claim("a"), await bench.claim("b")
            assert (first.server.name, catalogue(bench).is_loaded("a")) == (other.server.name, True)
            first.release(answered=True)
            assert (told("a"), told("b")) == (False, False), "it computes for another model"
            other.release(answered=True)
            assert (told("a"), told("b")) == (True, True)

    run_in_virtual_time(main())
