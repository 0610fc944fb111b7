from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from control_plane.core.errors import UpstreamFailed, UpstreamUnavailable
from control_plane.core.fingerprint import LoadedConfig
from control_plane.core.infer_call import InferCall
from control_plane.core.model import ModelState
from control_plane.core.tensor import Tensor
from control_plane.metering.compute_charges import ComputeCharges
from control_plane.metering.compute_costs import CHARGE_EVERY_S, POLL_EVERY_S, READ_EVERY_S, ComputeCosts
from control_plane.metering.domain.compute_units import ModelCost, UnitTable
from control_plane.triton.compute_time import ComputeTime, Ending
from control_plane.triton.servers import Servers
from tests.fakes import FakeUpstream

pytestmark = pytest.mark.virtual_time

TABLE = UnitTable((8,), (2.0,))
MS = 1_000_000


class FakeModels:
    """Fake of `metering/ports.ModelCosts`."""

    def __init__(self, **costs: ModelCost) -> None:
        self.costs: Mapping[str, ModelCost] = costs

    async def read(self) -> Mapping[str, ModelCost]:
        return self.costs


class Bench:
    """Cost estimator over fakes in virtual time, with one server or several."""

    def __init__(self, *servers: str, settles: bool = True, **costs: ModelCost) -> None:
        now_s = asyncio.get_running_loop().time
        self.models, self.servers, self.charged = FakeModels(**costs), Servers(None, servers or ("triton",)), dict[tuple[str, str], float]()
        self.upstreams = {name: FakeUpstream() for name in self.servers.members}
        for name, upstream in self.upstreams.items():
            self.servers.members[name].up(upstream)
        self.upstream = next(iter(self.upstreams.values()))
        self.charges = ComputeCharges(self._charge, now_s=now_s)
        self.costs = ComputeCosts(self.models, self.servers, self.charges, settles=settles, now_s=now_s)

    def _charge(self, tenant: str, model: str, units: float) -> None:
        self.charged[tenant, model] = self.charged.get((tenant, model), 0.0) + units

    def counts(self, server: str | None = None, **times: tuple[int, float]) -> None:
        """Let the fake Triton count these rows and milliseconds, by model."""
        upstream = self.upstream if server is None else self.upstreams[server]
        upstream.control.compute = {model: ComputeTime(rows, int(ms * MS)) for model, (rows, ms) in times.items()}

    def ended(self, tenant: str, model: str = "m", *, rows: int = 1, ms: float = 1e6, ending: Ending = Ending.ANSWERED) -> None:
        *_, steps = self.costs.estimate(call(model, rows))
        if steps:
            self.costs.charge(tenant, model, steps, ending, rows, ms)

    def expected(self, model: str, rows: int = 2) -> float | None:
        """Units charged in all."""
        _, by_table, rest, _ = self.costs.estimate(call(model, rows))
        return None if rest is None else by_table + rest

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.costs.run())
            await looked()
            yield
            task.cancel()


async def looked() -> None:
    """Wait until a poll has seen the present statistics."""
    await asyncio.sleep(POLL_EVERY_S + CHARGE_EVERY_S + 0.1)


async def charged() -> None:
    """Wait until requests that have ended are charged, if Triton's statistics have them."""
    await asyncio.sleep(2 * CHARGE_EVERY_S + 0.1)


def call(model: str, rows: int = 2) -> InferCall:
    return InferCall(model, "", "", (Tensor("X", "INT64", (rows, 8)),))


class TestExpected:
    async def test_a_request_costs_what_the_table_says(self) -> None:
        bench = Bench(m=ModelCost(TABLE), fixed=ModelCost(TABLE, is_batched=False))
        await bench.costs.read_models()
        assert bench.costs.estimate(call("m"))[:3] == (2, 4.0, 0.0)
        assert bench.costs.estimate(call("fixed"))[:3] == (1, 2.0, 0.0)

    async def test_of_what_nothing_is_known_only_the_rows_are(self) -> None:
        assert Bench().costs.estimate(call("m", rows=3)) == (3, 0.0, None, ("m",))

    async def test_what_triton_has_counted_is_expected_where_there_is_no_table(self) -> None:
        bench = Bench(tabled=ModelCost(TABLE), e=ModelCost(steps=("m", "tabled")))
        bench.counts(m=(10, 5.0), tabled=(10, 1e-6), idle=(0, 0.0))
        async with bench.running():
            assert bench.costs.estimate(call("m"))[:3] == (2, 0.0, 1.0)
            assert bench.costs.estimate(call("tabled"))[:3] == (2, 4.0, 0.0)
            assert bench.costs.estimate(call("e"))[:3] == (2, 4.0, 1.0)
            assert bench.expected("idle") is None

    async def test_it_is_of_all_servers_together(self) -> None:
        bench = Bench("s0", "s1")
        bench.counts("s0", m=(10, 10.0))
        bench.counts("s1", m=(30, 90.0))
        async with bench.running():
            assert bench.expected("m", rows=1) == 2.5
            bench.counts("s1")  # it was unloaded there
            await looked()
            assert bench.expected("m", rows=1) == 2.5

    async def test_looks_see_what_is_new_and_survive_a_triton_that_is_away(self) -> None:
        bench = Bench()
        bench.counts(m=(10, 10.0))
        async with bench.running():
            assert bench.expected("m") == 2.0
            bench.upstream.control.compute = UpstreamFailed("no statistics")
            await looked()
            bench.servers.down("restarting")
            await looked()
            assert bench.expected("m") == 2.0
            bench.counts(m=(20, 30.0))
            bench.servers.up(bench.upstream)
            await looked()
            assert bench.expected("m") == 4.0, "the first look had a load's first executions in it"

    async def test_a_look_computes_the_costs_of_what_was_computed_and_of_ensembles_anew(self) -> None:
        bench = Bench(quiet=ModelCost(TABLE), e=ModelCost(steps=("m",)))
        bench.counts(m=(10, 10.0))
        async with bench.running():
            before = bench.costs._costs["quiet"]
            bench.counts(m=(20, 40.0))
            await looked()
            assert (bench.expected("m", rows=1), bench.expected("e", rows=1)) == (3.0, 3.0)
            assert bench.costs._costs["quiet"] is before

    async def test_a_model_that_is_built_anew_has_its_new_costs_soon(self) -> None:
        bench = Bench(m=ModelCost(TABLE))
        async with bench.running():
            assert bench.expected("m") == 4.0
            bench.models.costs = {"m": ModelCost(UnitTable((8,), (1.0,)))}
            await asyncio.sleep(READ_EVERY_S + POLL_EVERY_S + 1.0)
            assert bench.expected("m") == 2.0

    async def test_whether_a_model_that_is_in_no_repository_here_has_batches_triton_says(self) -> None:
        bench = Bench()
        bench.upstream.control.configs = {"m": LoadedConfig(b"", is_batched=False)}
        bench.upstream.control.states = {"m": ModelState.READY, "other": ModelState.READY}
        bench.counts(m=(3, 30.0), other=(3, 30.0))
        async with bench.running():
            assert bench.costs.estimate(call("m", rows=768))[:3] == (1, 0.0, 10.0)
            assert bench.costs.estimate(call("other", rows=768))[:3] == (768, 0.0, 7680.0)

    async def test_a_server_that_leaves_while_it_is_asked_ends_no_look(self) -> None:
        bench = Bench("stays", "leaves")
        bench.counts("stays", m=(1, 10.0))
        bench.counts("leaves", n=(1, 10.0))
        bench.upstreams["leaves"].control.compute_delay_s = 1.0
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(bench.costs.run())
            await asyncio.sleep(0.5)
            bench.servers.members["leaves"].down("it leaves the fleet")
            bench.servers.remove("leaves")
            await looked()
            assert not running.done()
            assert bench.expected("m", rows=1) == 10.0
            running.cancel()


class TestCharged:
    """Attribution of compute time over several polls; `test_compute_shares` tests the division of a single
    poll.
    """

    async def test_what_has_a_table_waits_for_no_counts(self) -> None:
        bench = Bench(m=ModelCost(TABLE))
        bench.counts(m=(1, 9.0))
        async with bench.running():
            bench.ended("t")
            await charged()
            assert bench.charged == {}

    async def test_neither_its_own_waiting_nor_anothers_work_is_charged(self) -> None:
        """A request waits ten seconds behind an abandoned one of the same cost: each pays for its own."""
        bench = Bench()
        bench.counts(m=(0, 0.0))
        async with bench.running():
            bench.ended("leaves", ms=200.0, ending=Ending.LEFT)
            await asyncio.sleep(10.0)
            bench.counts(m=(1, 10_000.0))
            await asyncio.sleep(9.8)
            assert bench.charged == {("leaves", "m"): pytest.approx(10_000.0)}
            bench.counts(m=(2, 20_000.0))
            bench.ended("behind", ms=19_794.0)
            await charged()
            assert bench.charged == {("leaves", "m"): pytest.approx(10_000.0), ("behind", "m"): pytest.approx(10_000.0)}

    async def test_what_it_was_expected_to_cost_does_not_matter(self) -> None:
        bench = Bench()
        bench.counts(m=(1000, 100.0))
        async with bench.running():
            assert bench.expected("m", rows=1) == pytest.approx(0.1)
            bench.counts(m=(1001, 10_100.0))
            bench.ended("t", ms=10_050.0)
            await charged()
            assert bench.charged == {("t", "m"): pytest.approx(10_000.0)}

    async def test_an_ensemble_is_charged_for_each_of_its_steps_under_its_own_name(self) -> None:
        bench = Bench(e=ModelCost(steps=("m", "m", "tabled")), tabled=ModelCost(TABLE))
        async with bench.running():
            bench.counts(m=(4, 40.0), tabled=(2, 4.0), e=(2, 44.0))
            bench.ended("t", "e", rows=2)
            await charged()
            assert bench.charged == {("t", "e"): pytest.approx(40.0)}

    async def test_it_is_charged_wherever_it_was_computed(self) -> None:
        bench = Bench("s0", "s1")
        async with bench.running():
            bench.counts("s0", m=(1, 10.0))
            bench.counts("s1", m=(1, 30.0))
            bench.ended("t", rows=2)
            await charged()
            assert bench.charged == {("t", "m"): pytest.approx(40.0)}

    async def test_an_end_that_is_seen_a_moment_after_its_execution_is_charged_all_the_same(self) -> None:
        bench = Bench()
        async with bench.running():
            bench.ended("quick", ms=5.0)
            bench.counts(m=(2, 2003.0))
            await charged()
            bench.ended("slow", ms=2001.0)
            await charged()
            assert bench.charged == {("quick", "m"): pytest.approx(5.0), ("slow", "m"): pytest.approx(1998.0)}

    async def test_a_count_that_comes_after_its_answer_does_not_pass_for_what_another_left(self) -> None:
        bench = Bench()
        async with bench.running():
            bench.ended("first", rows=3, ms=50.0)
            bench.counts(m=(2, 40.0))
            await charged()
            bench.ended("left", ending=Ending.LEFT)
            bench.counts(m=(3, 40.4))
            await charged()
            bench.ended("behind", ms=4500.0)
            bench.counts(m=(5, 4540.4))
            await charged()
            assert bench.charged == {("first", "m"): 40.0, ("left", "m"): pytest.approx(2250.2), ("behind", "m"): pytest.approx(2250.2)}

    async def test_what_others_had_computed_long_before_is_nobodys_here(self) -> None:
        bench = Bench()
        async with bench.running():
            bench.counts(m=(100, 1e6))  # by who asks Triton straight
            await looked()
            await looked()
            bench.ended("t", ms=500.0, ending=Ending.LEFT)
            await looked()
            await looked()
            assert bench.charged == {}
            bench.counts(m=(101, 1e6 + 7.0))
            await charged()
            assert bench.charged == {("t", "m"): pytest.approx(7.0)}

    @pytest.mark.parametrize(("known", "units"), [(True, 20.0), (False, None)], ids=["by its usual cost", "or not at all"])
    async def test_what_triton_cannot_tell_any_more_is_estimated(self, known: bool, units: float | None) -> None:
        """Triton was restarted before any poll."""
        bench = Bench()
        bench.counts(m=(10, 100.0) if known else (0, 0.0))
        async with bench.running():
            bench.counts(m=(0, 0.0))
            bench.ended("t", rows=2, ms=5000.0)
            await charged()
            assert bench.charged == ({} if units is None else {("t", "m"): units})

    async def test_what_triton_drops_when_its_caller_leaves_is_not_charged(self) -> None:
        bench = Bench()
        bench.counts(m=(1, 10.0))
        async with bench.running():
            bench.ended("leaves", ending=Ending.LEFT)
            for ended in range(2, 200):
                bench.counts(m=(ended, 10.0 * ended))
                bench.ended("stays")
                await asyncio.sleep(5.0)
            assert bench.charged == {("stays", "m"): pytest.approx(10.0 * 198)}

    async def test_while_triton_does_not_tell_charges_wait(self) -> None:
        bench = Bench()
        async with bench.running():
            bench.upstream.control.compute = UpstreamFailed("no statistics")
            bench.ended("t", ms=50.0)
            await asyncio.sleep(60.0)
            bench.counts(m=(1, 10.0))
            await charged()
            assert bench.charged == {("t", "m"): pytest.approx(10.0)}

    async def test_names_of_no_model_are_forgotten(self) -> None:
        bench = Bench()
        async with bench.running():
            for number in range(100):
                bench.ended("t", f"made up {number}", ending=Ending.LEFT)
            await charged()
            await charged()
            assert bench.charges.take() == []

    async def test_they_take_no_more_than_some_room(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = Bench()
        for number in range(30_000):
            bench.ended("t", f"made up {number}", ending=Ending.LEFT)
        assert len(bench.charges.take()) == 20_000
        bench.ended("t")
        assert len(bench.charges.take()) == 1
        assert len(caplog.records) == 1

    async def test_at_the_end_everything_is_charged(self) -> None:
        bench = Bench()
        bench.counts(m=(10, 100.0), n=(10, 100.0))
        async with bench.running():
            pass
        bench.counts(m=(11, 150.0), n=(10, 100.0))
        bench.ended("t")
        bench.ended("leaves", "n", ending=Ending.LEFT)
        await bench.costs.settle()
        assert bench.charged == {("t", "m"): pytest.approx(50.0), ("leaves", "n"): pytest.approx(10.0)}

    @pytest.mark.parametrize("how", ["it is down", "it says nothing"])
    async def test_units_are_settled_without_a_triton_that_answers(self, how: str) -> None:
        bench = Bench()
        bench.counts(m=(10, 100.0))
        async with bench.running():
            pass
        if how == "it is down":
            bench.servers.down("stopped")
        else:
            bench.upstream.control.compute_delay_s = 60.0
        bench.ended("t", rows=2)
        began_s = asyncio.get_running_loop().time()
        await bench.costs.settle()
        assert asyncio.get_running_loop().time() - began_s < 2.0
        assert bench.charged == {("t", "m"): pytest.approx(20.0)}

    async def test_a_workers_are_settled_by_its_parent_which_asks_for_them(self) -> None:
        worker, parent = Bench(settles=False), Bench()

        async def collect() -> None:
            parent.charges.include(worker.charges.take())

        parent.charges.collect = collect
        async with worker.running(), parent.running():
            for bench in (worker, parent):
                bench.counts(m=(2, 2010.0))
            worker.ended("quick", ms=12.0)
            worker.ended("slow", ms=2001.0)
            await looked()
            assert worker.charged == {}
            assert parent.charged == {("quick", "m"): pytest.approx(12.0), ("slow", "m"): pytest.approx(1998.0)}

    async def test_looks_are_rare_while_there_is_nothing_to_charge_and_take_a_small_part_of_the_time(self) -> None:
        bench = Bench()
        async with bench.running():
            polls = bench.upstream.control.polls
            await asyncio.sleep(60.0)
            assert bench.upstream.control.polls - polls <= 60.0 / POLL_EVERY_S + 1
            bench.upstream.control.compute_delay_s = 0.2  # with thousands of models
            polls = bench.upstream.control.polls
            for _ in range(60):
                bench.ended("t")
                await asyncio.sleep(1.0)
            assert 0.2 * (bench.upstream.control.polls - polls) < 0.06 * 60.0


async def test_a_model_costs_what_the_variant_that_it_serves_does_also_while_nobody_can_say_which() -> None:
    tables = {name: UnitTable((8,), (ms,)) for name, ms in (("fp32", 9.0), ("int8", 4.0))}

    bench = Bench(m=ModelCost(tables["fp32"], by_variant=tables))
    async with bench.running():
        assert bench.expected("m") == 18.0
        bench.upstream.metrics = b'tidegate_served_variant{model="m",reason="it is fast",variant="int8",version="1"} 1\n'
        await looked()
        assert bench.expected("m") == 8.0
        bench.upstream.metrics = UpstreamUnavailable("no metrics")
        await looked()
        assert bench.expected("m") == 8.0
        bench.upstream.metrics = b'tidegate_served_variant{model="m",reason="named",variant="fp32",version="1"} 2\n'
        while bench.expected("m") != 18.0:
            await asyncio.sleep(POLL_EVERY_S)
