"""`LeaderElection` over a fake store, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from control_plane.core.errors import UpstreamUnavailable
from control_plane.fleet.adapters.local_lease import LocalLease
from control_plane.fleet.domain.leadership.election import LeaseLimits
from control_plane.fleet.domain.leadership.lease import Lease
from control_plane.fleet.leadership.election import LeaderElection
from control_plane.fleet.ports import LeaseStore
from control_plane.host.boot_clock import boot_time_s
from tests.aio import settle
from tests.fakes.stores.lease import FakeLeaseStore, FakeRecord

LIMITS = LeaseLimits(ttl_s=6.0, margin_s=1.0)
WAIT_S = LIMITS.ttl_s + LIMITS.margin_s + LIMITS.look_every_s
"""At most, until one takes what nobody renews."""
RELEASED = Lease(4, "before", 6.0, is_released=True)


@asynccontextmanager
async def owning(store: LeaseStore, holder: str = "me", now_s: Callable[[], float] | None = None) -> AsyncIterator[LeaderElection]:
    election = LeaderElection(store, holder=holder, limits=LIMITS, now_s=now_s or asyncio.get_running_loop().time)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(election.run())
        await settle()
        yield election
        running.cancel()


@pytest.mark.virtual_time
async def test_alone_it_is_the_leader_at_once_and_stays_it() -> None:
    async with owning(LocalLease()) as election:
        assert (election.is_leader, election.token, election.leader) == (True, 1, "me")
        assert election.require() == 1
        await asyncio.sleep(1000.0)
        assert election.require() == 1


@pytest.mark.virtual_time
async def test_alone_and_paused_it_is_the_leader_again_at_once() -> None:
    skipped_s = 0.0
    async with owning(LocalLease(), now_s=lambda: asyncio.get_running_loop().time() + skipped_s) as election:
        skipped_s = 60.0
        with pytest.raises(UpstreamUnavailable):
            election.require()
        await asyncio.sleep(LIMITS.renew_every_s + 0.1)
        assert election.require() == 2


@pytest.mark.virtual_time
async def test_an_empty_store_is_waited_out() -> None:
    async with owning(FakeLeaseStore()) as election:
        await asyncio.sleep(LIMITS.ttl_s + LIMITS.margin_s - 0.1)
        assert not election.is_leader
        await asyncio.wait_for(election.wait_until_leader(), LIMITS.look_every_s + 0.2)
        assert election.token == 1


@pytest.mark.virtual_time
async def test_a_released_one_is_taken_at_once_and_renewed_while_it_runs() -> None:
    store = FakeLeaseStore(FakeRecord(RELEASED))
    async with owning(store) as election:
        assert election.require() == 5
        await asyncio.sleep(60.0)
        assert election.require() == 5
        assert store.record.lease is not None
        assert 25 <= store.record.lease.beat <= 35


@pytest.mark.virtual_time
async def test_the_other_waits_while_it_is_renewed_and_takes_over_when_it_is_not() -> None:
    record = FakeRecord(RELEASED)
    async with owning(FakeLeaseStore(record), "one") as one, owning(FakeLeaseStore(record), "other") as other:
        await asyncio.sleep(60.0)
        assert (one.is_leader, other.is_leader, other.leader) == (True, False, "one")
        with pytest.raises(UpstreamUnavailable, match=r"does not load and unload the fleet's models now, one does; try again shortly"):
            other.require()
    async with owning(FakeLeaseStore(record), "third") as third:
        await asyncio.wait_for(third.wait_until_leader(), WAIT_S + 0.1)
        assert third.token == 6


@pytest.mark.parametrize(
    ("loses_writes", "token", "wait_s"),
    [
        pytest.param(False, 5, LIMITS.retry_s, id="the store is as it was: nobody else can have it"),
        pytest.param(True, 6, LIMITS.retry_s + LIMITS.ttl_s + LIMITS.margin_s + 0.01, id="it may have lost that somebody took it"),
    ],
)
@pytest.mark.virtual_time
async def test_a_store_that_is_away_costs_the_lease_only_when_its_time_is_over(
    loses_writes: bool, token: int, wait_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        store = FakeLeaseStore(FakeRecord(RELEASED))
        async with owning(store) as election:
            store.is_away = True
            await asyncio.sleep(LIMITS.ttl_s - LIMITS.renew_every_s - LIMITS.margin_s - 0.1)
            assert election.is_leader
            await asyncio.sleep(LIMITS.renew_every_s + 0.2)
            assert not election.is_leader
            assert election.token is not None  # another could not have it yet
            await asyncio.sleep(60.0)
            assert election.token is None
            store.is_away = False
            store.record.run = "run 2" if loses_writes else store.record.run
            await asyncio.wait_for(election.wait_until_leader(), wait_s)
            assert election.token == token
    assert [record.message for record in caplog.records if "cannot be reached" in record.message] == [
        "the lease of the fleet cannot be reached; its leader goes on only while it lasts: the store is away"
    ]
    assert caplog.messages.count("this process leads the fleet no longer, token 5") == 1


@pytest.mark.virtual_time
async def test_a_renewal_that_comes_back_makes_it_the_leader_again_for_those_who_wait() -> None:
    store = FakeLeaseStore(FakeRecord(RELEASED))
    async with owning(store) as election:
        store.is_away = True
        await asyncio.sleep(LIMITS.ttl_s - LIMITS.margin_s / 2)
        assert (election.is_leader, election.token) == (False, 5)
        store.is_away = False
        await asyncio.wait_for(election.wait_until_leader(), LIMITS.retry_s)
        assert election.token == 5


@pytest.mark.virtual_time
async def test_one_that_somebody_has_taken_is_given_up_at_once() -> None:
    store = FakeLeaseStore(FakeRecord(RELEASED))
    async with owning(store) as election:
        store.record.lease = Lease(6, "they", 6.0)
        await asyncio.sleep(LIMITS.renew_every_s + 0.1)
        assert (election.is_leader, election.token) == (False, None)


@pytest.mark.virtual_time
async def test_a_clean_stop_lets_the_next_begin_at_once() -> None:
    record = FakeRecord(RELEASED)
    async with owning(FakeLeaseStore(record), "one") as one:
        one.require()
        await asyncio.sleep(2 * LIMITS.margin_s + 0.1)
    await one.stop()
    assert (one.is_leader, one.token) == (False, None)
    with pytest.raises(UpstreamUnavailable):
        one.require()
    async with owning(FakeLeaseStore(record), "other") as other:
        assert other.require() == 6


@pytest.mark.parametrize("why", ["it has just begun a call", "the store is away", "another has it"])
@pytest.mark.virtual_time
async def test_a_stop_that_is_not_clean_leaves_the_lease_to_run_out(why: str) -> None:
    store = FakeLeaseStore(FakeRecord(RELEASED))
    async with owning(store) as election:
        if why == "it has just begun a call":
            election.require()
        elif why == "another has it":
            store.record.lease = Lease(6, "they", 6.0)
    store.is_away = why == "the store is away"
    before = store.record.lease
    await election.stop()
    assert store.record.lease == before
    assert before is not None
    assert not before.is_released


@pytest.mark.virtual_time
async def test_an_answer_that_got_lost_is_waited_out_like_anothers() -> None:
    class Losing(FakeLeaseStore):
        async def acquire(self, seen: Lease | None, *, holder: str, ttl_s: float) -> Lease | None:
            await super().acquire(seen, holder=holder, ttl_s=ttl_s)
            return None if self.record.lease and self.record.lease.token == 5 else self.record.lease

    async with owning(Losing(FakeRecord(RELEASED))) as election:
        assert not election.is_leader
        await asyncio.wait_for(election.wait_until_leader(), WAIT_S + LIMITS.look_every_s)
        assert election.token == 6


async def test_boot_time_goes_on_within_one_turn_of_the_loop() -> None:
    began_s = boot_time_s()
    while boot_time_s() == began_s:
        pass


@pytest.mark.virtual_time
async def test_the_record_stays_as_it_was_for_who_is_not_the_holder() -> None:
    record = FakeRecord(replace(RELEASED, is_released=False, holder="gone"))
    async with owning(FakeLeaseStore(record)) as election:
        await asyncio.sleep(LIMITS.ttl_s)
        assert record.lease == replace(RELEASED, is_released=False, holder="gone")
        assert election.leader == "gone"
