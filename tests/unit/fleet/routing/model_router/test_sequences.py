"""Requests of sequences in a fleet, over fake Tritons in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.infer_call import InferCall
from tests.unit.fleet.fleet_bench import READY, FleetBench, model, running

pytestmark = pytest.mark.virtual_time


def in_sequence(name: str, number: int, *, starts: bool = False, ends: bool = False) -> InferCall:
    return InferCall(name, "", "", (), sequence_id=str(number), starts_sequence=starts, ends_sequence=ends)


class TestSequences:
    async def test_go_where_they_began_until_they_end(self) -> None:
        async with running(FleetBench(model("a", holds=True, max_replicas=2), servers=2)) as bench:
            for name in ("s0", "s1"):
                bench.tritons[name].states["a"] = READY
                await bench.loads[name].poll_index()
            first = await bench.router.acquire(in_sequence("a", 1, starts=True), deadline_s=1e3)
            home = first.server.name
            others = [await bench.claim("a") for _ in range(5)]  # so that the other server has less to do
            again = await bench.router.acquire(in_sequence("a", 1, ends=True), deadline_s=1e3)
            assert again.server.name == home
            assert bench.replica("a", home).sequences == 1
            again.release(answered=True)
            bench.router.answered(in_sequence("a", 1, ends=True), again)
            assert bench.replica("a", home).sequences == 0
            for each in (first, *others):
                each.release(answered=True)

    async def test_go_on_at_a_server_that_leaves_where_nothing_new_goes(self) -> None:
        async with running(FleetBench(model("a", holds=True, max_replicas=2), servers=2)) as bench:
            first = await bench.router.acquire(in_sequence("a", 1, starts=True), deadline_s=1e3)
            first.release(answered=True)
            bench.state.fleet.servers[first.server.name].is_draining = True
            other = await bench.router.acquire(in_sequence("a", 2, starts=True), deadline_s=1e3)
            assert other.server is not first.server
            again = await bench.router.acquire(in_sequence("a", 1), deadline_s=1e3)
            assert again.replica is first.replica
            for each in (again, other):
                each.release(answered=True)

    async def test_fail_clearly_when_their_server_is_gone_and_can_begin_anew(self) -> None:
        async with running(FleetBench(model("a", holds=True, max_replicas=2), servers=2)) as bench:
            claim = await bench.router.acquire(in_sequence("a", 1, starts=True), deadline_s=1e3)
            bench.kill(claim.server.name)
            claim.release(answered=False)
            with pytest.raises(UpstreamUnavailable, match=r"sequence of model 'a' is gone.*start it anew"):
                await bench.router.acquire(in_sequence("a", 1), deadline_s=1e3)
            anew = await bench.router.acquire(in_sequence("a", 1, starts=True), deadline_s=1e3)
            assert anew.server is not claim.server
            anew.release(answered=True)

    async def test_a_model_without_sequences_is_not_held_by_who_says_so(self) -> None:
        async with running(FleetBench()) as bench:
            claim = await bench.router.acquire(in_sequence("a", 1, starts=True), deadline_s=1e3)
            assert claim.replica.sequences == 0
            claim.release(answered=True)

    async def test_that_lie_idle_let_their_replica_go_though_no_other_goes_on(self) -> None:
        async with running(FleetBench(model("a", holds=True), servers=1)) as bench:
            claim = await bench.router.acquire(in_sequence("a", 1, starts=True), deadline_s=1e3)
            claim.release(answered=True)
            for idle_s, held in ((59.0, 1), (2.0, 0)):
                await asyncio.sleep(idle_s)
                bench.router.look_for_overdue()
                assert claim.replica.sequences == held
