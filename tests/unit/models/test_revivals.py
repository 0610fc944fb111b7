"""Models that lose a Python process: what their loads and unloads do, and their revival."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from control_plane.core.errors import ModelLoadFailed, UpstreamUnavailable
from control_plane.core.model import ModelOverride, ModelState
from control_plane.models.domain.revival_backoff import RevivalBackoff
from control_plane.models.model_service import ModelService
from control_plane.models.revivals import ModelRevivals
from control_plane.triton.compute_time import ComputeTime
from control_plane.triton.servers import Servers
from tests.fakes import FakeRepository, FakeUpstream
from tests.unit.fleet.fleet_bench import TimedControl

pytestmark = pytest.mark.virtual_time

READY, UNLOADING = ModelState.READY, ModelState.UNLOADING
HOW = "was killed by SIGKILL"


@dataclass
class FakeStubs:
    """`models/ports.ModelStubs` whose stubs are names."""

    ended: list[str] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)

    async def stubs_of(self, models: Collection[str]) -> Sequence[str]:
        return [f"stub of {each}" for each in sorted(models)]

    def end_stubs(self, stubs: Sequence[str]) -> None:
        self.ended += stubs

    def kill_stubs(self, stubs: Sequence[str]) -> None:
        self.killed += stubs


class Bench:
    """The models a, b and e, an ensemble of b, of one Triton in virtual time; make it inside the event loop."""

    def __init__(self, *, is_fleet: bool = False) -> None:
        self.control = TimedControl(steps={"e": ["b"]})
        self.servers, self.stubs = Servers(), FakeStubs()
        self.servers.up(FakeUpstream(control=self.control))
        repository = FakeRepository(models=["a", "b", "e"], steps={"e": ["b"]})
        self.service = ModelService(servers=self.servers, repository=repository, load=[], load_timeout_s=60.0, stubs=self.stubs)
        self.revivals = ModelRevivals(self.service, None if is_fleet else self.servers.under_repair, now_s=asyncio.get_running_loop().time)

    def die(self, name: str) -> None:
        self.control.dead.add(name)
        self.revivals.stub_died(name, HOW)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Bench]:
        tasks = [asyncio.create_task(each) for each in (self.service.run(), self.revivals.run())]  # noqa: TID251
        await asyncio.sleep(0)
        try:
            yield self
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class TestOfItself:
    async def test_it_is_unloaded_and_loaded_while_requests_wait_and_what_lives_on_of_it_is_ended(self) -> None:
        async with Bench().running() as bench:
            await bench.service.load("a", override := ModelOverride("{}"))
            events: list[tuple[str, str, str]] = []
            bench.service.on_event = lambda *event: events.append(event)
            bench.die("a")
            bench.die("a")  # a second instance
            await asyncio.sleep(0.1)
            assert "a" in bench.servers.under_repair
            await bench.servers.under_repair.wait("a", timeout_s=5.0)
            assert bench.control.said == ["load a", "unload a", "load a"]
            assert bench.control.overrides == {"a": override}
            assert bench.control.states == {"a": READY}
            assert bench.stubs.ended == ["stub of a"]
            assert not bench.service.is_dead("a")
            assert events == [("lost", "a", HOW), ("loaded", "a", "")]

    async def test_where_it_is_a_step_it_is_unloaded_and_its_ensemble_loaded(self) -> None:
        async with Bench().running() as bench:
            await bench.service.load("e")
            bench.die("b")
            await asyncio.sleep(0.1)
            assert "e" in bench.servers.under_repair
            assert "b" in bench.servers.under_repair
            await bench.servers.under_repair.wait("e", timeout_s=5.0)
            assert bench.control.said == ["load e", "unload b", "load e"]

    async def test_it_waits_longer_each_time_and_says_so_to_requests(self) -> None:
        now_s = asyncio.get_running_loop().time
        async with Bench().running() as bench:
            await bench.service.load("a")
            for revived_within_s in (2.0, 7.0, 12.0):
                began_s = now_s()
                bench.die("a")
                await asyncio.sleep(0.1)
                await bench.servers.under_repair.wait("a", timeout_s=100.0)
                assert revived_within_s - 3.0 < now_s() - began_s < revived_within_s

    async def test_a_death_whose_cause_is_known_is_waited_for_no_longer(self) -> None:
        async with Bench().running() as bench:
            await bench.service.load("a")
            for _ in range(2):
                bench.die("a")
                await asyncio.sleep(2.0)
            assert bench.control.said.count("load a") == 2, "in back-off"
            bench.revivals.explain_death("a")
            bench.revivals.explain_death("a")
            await bench.servers.under_repair.wait("a", timeout_s=2.0)
            assert bench.control.states == {"a": READY}
            assert bench.control.said.count("load a") == 3
            bench.die("a")
            await asyncio.sleep(2.0)
            assert bench.control.said.count("load a") == 4, "neither counts"

    async def test_a_load_that_fails_is_tried_again(self) -> None:
        async with Bench().running() as bench:
            await bench.service.load("a")
            bench.control.failures["a"] = ModelLoadFailed("its weights are missing")
            bench.die("a")
            await asyncio.sleep(3.0)
            assert "a" not in bench.control.states
            del bench.control.failures["a"]
            await bench.servers.under_repair.wait("a", timeout_s=60.0)
            assert bench.control.states == {"a": READY}

    async def test_an_administrators_load_does_not_wait_for_the_back_off(self) -> None:
        async with Bench().running() as bench:
            await bench.service.load("a")
            for _ in range(2):
                bench.die("a")
                await asyncio.sleep(2.0)
            assert bench.control.said.count("load a") == 2
            await bench.service.load("a")
            assert bench.control.said[-2:] == ["unload a", "load a"]
            await asyncio.sleep(30.0)
            assert bench.control.said.count("load a") == 3
            assert "a" not in bench.servers.under_repair

    async def test_in_a_fleet_others_load_it(self) -> None:
        async with Bench(is_fleet=True).running() as bench:
            await bench.service.load("a")
            bench.die("a")
            await asyncio.sleep(20.0)
            assert bench.control.said == ["load a"]

    async def test_while_triton_is_gone_nothing_is_done(self) -> None:
        async with Bench().running() as bench:
            await bench.service.load("a")
            bench.servers.down("Triton has ended and is being restarted")
            bench.die("a")
            await asyncio.sleep(1.0)
            upstream = FakeUpstream(control=TimedControl())
            bench.servers.up(upstream)
            await bench.service.restore(upstream)
            await asyncio.sleep(60.0)
            assert upstream.control.loads == ["a"]
            assert "a" not in bench.servers.under_repair


class TestUnloads:
    """Triton never ends the unload of a model with a dead process."""

    async def test_one_is_completed_by_a_load_and_an_unload_of_that(self) -> None:
        async with Bench(is_fleet=True).running() as bench:
            await bench.service.load("a")
            bench.die("a")
            await bench.service.unload("a")
            await asyncio.sleep(1.0)
            assert bench.control.said == ["load a", "unload a", "load a", "unload a"]
            assert bench.control.states == {}
            assert bench.stubs.ended == ["stub of a"]

    async def test_one_whose_process_dies_while_it_is_unloaded_is_completed_too(self) -> None:
        async with Bench().running() as bench:
            await bench.service.load("a")
            bench.control.dead.add("a")
            await bench.service.unload("a")
            assert bench.control.states == {"a": UNLOADING}
            bench.die("a")
            await asyncio.sleep(2.0)
            assert bench.control.states == {}

    async def test_one_that_cannot_be_loaded_any_more_stays_and_nothing_else_is_harmed(self) -> None:
        async with Bench(is_fleet=True).running() as bench:
            await bench.service.load("a")
            bench.die("a")
            bench.control.failures["a"] = ModelLoadFailed("its files are gone")
            await bench.service.unload("a")
            await bench.service.load("b")
            assert bench.control.states["b"] is READY


class TestHanging:
    """What seems to hang is ended only if Triton computes nothing of it."""

    @pytest.mark.parametrize(
        ("before", "after", "killed"),
        [
            pytest.param(ComputeTime(5, 100), ComputeTime(5, 100), ["stub of a"], id="nothing"),
            pytest.param(ComputeTime(5, 100), ComputeTime(6, 130), [], id="something"),
            pytest.param(ComputeTime(), ComputeTime(), [], id="it has just been loaded"),
        ],
    )
    async def test_it_is_looked_at_twice(self, before: ComputeTime, after: ComputeTime, killed: list[str]) -> None:
        async with Bench(is_fleet=True).running() as bench:
            bench.control.compute = {"a": before, "b": ComputeTime(7, 7)}
            bench.revivals.suspect("a", 0.0)
            bench.revivals.suspect("a", 0.0)
            await asyncio.sleep(0.5)
            bench.control.compute = {"a": after, "b": ComputeTime(7, 7)}
            await asyncio.sleep(5.0)
            assert bench.stubs.killed == killed

    @pytest.mark.parametrize(("oldest_s", "is_ended"), [(1.5, False), (2.5, True)])
    async def test_what_another_process_waits_for_since_before_is_let_compute(self, oldest_s: float, is_ended: bool) -> None:
        bench = Bench(is_fleet=True)
        bench.revivals = ModelRevivals(bench.service, None, oldest_s=lambda model: oldest_s, now_s=asyncio.get_running_loop().time)
        async with bench.running():
            bench.control.compute = {"a": ComputeTime(5, 100)}
            await asyncio.sleep(4.0)
            bench.revivals.suspect("a", 2.0)
            await asyncio.sleep(5.0)
            assert bool(bench.stubs.killed) is is_ended

    async def test_of_an_ensemble_those_steps_are_ended_that_compute_nothing(self) -> None:
        async with Bench(is_fleet=True).running() as bench:
            bench.control.compute = {"a": ComputeTime(5, 100), "b": ComputeTime(7, 7)}
            bench.revivals.suspect("e", 0.0)
            await asyncio.sleep(5.0)
            assert bench.stubs.killed == ["stub of b"]

    async def test_a_first_request_has_a_minute(self) -> None:
        async with Bench(is_fleet=True).running() as bench:
            bench.control.compute = {"a": ComputeTime()}
            for _ in range(20):
                bench.revivals.suspect("a", 0.0)
                await asyncio.sleep(2.9)
            assert bench.stubs.killed == []
            await asyncio.sleep(70.0)  # another copy
            for _ in range(25):
                bench.revivals.suspect("a", 0.0)
                await asyncio.sleep(2.9)
            assert bench.stubs.killed[:1] == ["stub of a"]

    async def test_while_triton_says_nothing_nothing_is_ended(self) -> None:
        async with Bench(is_fleet=True).running() as bench:
            bench.servers.down("it is being restarted")
            bench.revivals.suspect("a", 0.0)
            await asyncio.sleep(5.0)
            assert bench.stubs.killed == []


async def test_what_triton_could_not_be_told_stays_dead() -> None:
    async with Bench(is_fleet=True).running() as bench:
        bench.service.note_death("a")
        with pytest.raises(UpstreamUnavailable):
            async with bench.service.replacing({"a"}):
                raise UpstreamUnavailable("Triton is gone")
        assert bench.service.is_dead("a")
        assert bench.stubs.ended == []


def test_the_back_off_doubles_and_is_forgotten_after_a_long_life() -> None:
    backoff = RevivalBackoff()
    assert backoff.delay_s("a", 0.0) == 0.0
    backoff.begin("a", 0.0)
    assert backoff.delay_s("a", 1.0) == 4.0
    assert backoff.delay_s("b", 1.0) == 0.0
    backoff.begin("a", 5.0)
    assert backoff.delay_s("a", 5.0) == 10.0
    backoff.begin("a", 700.0)
    assert backoff.delay_s("a", 700.0) == 5.0
    backoff.forgive("a")
    assert backoff.delay_s("a", 700.0) == 0.0


@pytest.mark.parametrize("is_known_first", [True, False], ids=["verdict before the death", "verdict after it"])
def test_a_death_with_a_known_cause_does_not_count_in_the_back_off(is_known_first: bool) -> None:
    backoff = RevivalBackoff()
    backoff.begin("a", 0.0)
    for death in range(3):
        now_s = 10.0 + death
        if is_known_first:
            assert backoff.explain("a", now_s)
        backoff.begin("a", now_s)
        if not is_known_first:
            assert backoff.explain("a", now_s)
    backoff.begin("a", 13.0)
    assert backoff.delay_s("a", 13.0) == 10.0, "two have none"
    backoff.begin("a", 20.0)
    assert backoff.delay_s("a", 20.0) == 20.0, "and it backs off as ever"


def test_a_cause_that_is_known_excuses_no_death_long_after_it() -> None:
    backoff = RevivalBackoff()
    assert backoff.explain("a", 0.0)
    backoff.begin("a", 30.0)
    assert backoff.delay_s("a", 30.0) == 5.0


def test_a_client_with_ever_new_poison_is_no_reason_to_load_for_ever() -> None:
    backoff = RevivalBackoff()
    for death in range(40):
        backoff.begin("a", float(death))
        backoff.explain("a", float(death))
    assert backoff.delay_s("a", 40.0) > 60.0
    backoff.begin("a", 700.0)
    assert backoff.explain("a", 700.0), "after ten minutes it is another matter"
