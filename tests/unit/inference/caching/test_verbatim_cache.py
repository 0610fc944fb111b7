"""Verbatim cache: byte-equal messages are answered as long as nothing has changed, and every hit is
counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from control_plane.admission.rate_leases import RateLeases
from control_plane.cache.domain.eviction import ENTRY_BYTES
from control_plane.core.errors import LimitExceeded
from control_plane.core.infer_call import CacheStatus, Frontend, Outcome
from control_plane.inference.caching.verbatim_cache import MOST_UNFLUSHED, MessageKey
from control_plane.metering.domain.usage import Usage, UsageBatch
from control_plane.metering.metering import Metering
from control_plane.objects.domain.purge import EVERY_MODEL, Purge
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.tenant import Tenant
from control_plane.workers.token_buckets import TokenBuckets
from tests.fakes.governance import FakeMeter
from tests.fakes.stores.usage_store import FakeUsageStore
from tests.unit.inference.caching.verbatim_cache_bench import (
    ANSWER,
    CALLER,
    ELEMENTS,
    FIRST,
    MESSAGE,
    ROWS,
    SECOND,
    TODAY_S,
    TTL_S,
    Bench,
    key_in,
)


@pytest.mark.virtual_time
async def test_a_message_that_was_answered_before_is_known() -> None:
    bench = Bench()
    bench.begin()
    assert bench.ask((b"head", b"another")) == ("kept", ANSWER)
    assert bench.ask() == ("known", ANSWER)


def changed(bench: Bench) -> None:
    bench.fingerprints.change({"m": SECOND})


def unknown(bench: Bench) -> None:
    bench.fingerprints.change({"m": None})


def ended(bench: Bench) -> None:
    bench.fingerprints.forget_all()


def changed_and_changed_back(bench: Bench) -> None:
    changed(bench)
    bench.fingerprints.change({"m": FIRST})


def ended_and_loaded_again(bench: Bench) -> None:
    ended(bench)
    bench.fingerprints.change({"m": FIRST})


def purged(bench: Bench) -> None:
    bench.known.purges, bench.known.generation = {"m": Purge("m", "p")}, bench.known.generation + 1


def all_purged(bench: Bench) -> None:
    bench.known.purges, bench.known.generation = {EVERY_MODEL: Purge(EVERY_MODEL, "p")}, bench.known.generation + 1


def routed(bench: Bench) -> None:
    bench.known.routes, bench.known.generation = {"m": Route("m", "other")}, bench.known.generation + 1


def known_anew(bench: Bench) -> None:
    bench.known.generation += 1


def replaced(bench: Bench) -> None:
    bench.compute(b"newer")


@pytest.mark.parametrize(
    ("happens", "then"),
    [
        (changed, ("nothing", None)),
        (unknown, ("nothing", None)),
        (ended, ("nothing", None)),
        (changed_and_changed_back, ("kept", ANSWER)),
        (ended_and_loaded_again, ("kept", ANSWER)),
        (purged, ("nothing", None)),
        (all_purged, ("nothing", None)),
        (routed, ("nothing", None)),
        (known_anew, ("kept", ANSWER)),
        (replaced, ("kept", b"newer")),
    ],
)
@pytest.mark.virtual_time
async def test_nothing_is_known_after_a_change(happens: Callable[[Bench], None], then: tuple[str, bytes | None]) -> None:
    bench = Bench()
    bench.begin()
    happens(bench)
    assert [bench.hits.answer(MESSAGE) for _ in range(2)] == [None, None]
    assert bench.ask() == then
    if then[0] == "kept":
        assert bench.ask() == ("known", then[1])


@pytest.mark.virtual_time
async def test_nothing_is_known_of_an_answer_that_has_expired() -> None:
    bench = Bench()
    bench.begin()
    await asyncio.sleep(TTL_S - 1)
    assert bench.ask() == ("known", ANSWER)
    await asyncio.sleep(1)
    assert bench.ask() == ("nothing", None)


@pytest.mark.virtual_time
async def test_nothing_is_known_of_an_answer_that_was_evicted() -> None:
    bench = Bench(room=8 * ENTRY_BYTES)
    bench.begin()
    for number in range(100):
        bench.kept.put(b"%32d" % number, bytes(100), cost_units=1e6, expires_s=1e6)
    assert bench.ask() == ("nothing", None)


@pytest.mark.virtual_time
async def test_nothing_is_known_of_who_shows_a_key_that_has_expired() -> None:
    bench = Bench()
    bench.begin(principal=replace(CALLER, expires_s=TODAY_S + 10))
    bench.today_s = TODAY_S + 9.9
    assert bench.hits.answer(MESSAGE) == ANSWER
    bench.today_s = TODAY_S + 10
    assert bench.hits.answer(MESSAGE) is None


@pytest.mark.virtual_time
async def test_of_who_shows_a_token_nothing_is_kept() -> None:
    bench = Bench()
    bench.compute()
    assert [bench.ask(principal=replace(CALLER, is_known=False)) for _ in range(3)] == [("kept", ANSWER)] * 3


@pytest.mark.virtual_time
async def test_where_requests_are_logged_nothing_is_kept() -> None:
    bench = Bench(meter=FakeMeter(has_log=True))
    bench.compute()
    assert [bench.ask() for _ in range(3)] == [("kept", ANSWER)] * 3
    assert len(bench.meter.events) == 3


@pytest.mark.virtual_time
async def test_what_was_kept_is_not_used_while_somebody_reads_requests() -> None:
    bench = Bench(meter=FakeMeter(has_log=False))
    bench.begin()
    assert bench.ask() == ("known", ANSWER)
    bench.meter.has_log = True
    assert [bench.ask()[0] for _ in range(2)] == ["kept", "kept"]
    assert len(bench.meter.events) == 2
    bench.meter.has_log = False
    assert [bench.ask()[0] for _ in range(2)] == ["kept", "known"]


@pytest.mark.virtual_time
async def test_a_tenant_beyond_its_rate_is_refused_and_that_recorded_once() -> None:
    bench = Bench(Tenant("team", requests_per_s=0.001, burst=3))
    bench.begin()
    assert bench.ask() == ("known", ANSWER)
    with pytest.raises(LimitExceeded):
        bench.ask()
    bench.hits.flush_counts()
    assert sorted(bench.recorder.outcomes) == sorted([Outcome.ANSWERED] * 3 + [Outcome.REFUSED])
    assert [told[2] for told in bench.meter.added].count(Outcome.REFUSED) == 1
    await asyncio.sleep(1000)
    assert bench.ask()[1] is None, "it has a request again, and its answer has expired"


@pytest.mark.virtual_time
async def test_hits_of_a_tenant_with_a_rate_are_let_by_each() -> None:
    bench = Bench(Tenant("team", requests_per_s=1.0, burst=1))
    bench.compute()
    bench.ask()
    for _ in range(5):
        await asyncio.sleep(1.0)
        assert bench.ask() == ("known", ANSWER)
        with pytest.raises(LimitExceeded):
            bench.ask()


class NoSpill:
    def batches(self) -> Iterator[UsageBatch]:
        return iter(())

    def write(self, batch: UsageBatch) -> None:
        raise AssertionError("the store takes everything")

    def remove(self, batch: UsageBatch) -> None:
        raise AssertionError("there is none")


@pytest.mark.virtual_time
async def test_every_hit_is_counted_once() -> None:
    store = FakeUsageStore()
    metering = Metering(store=store, spill=NoSpill(), max_sums=10, today_s=lambda: TODAY_S)
    bench = Bench(meter=metering)
    bench.begin()
    for count in (5, 7):
        for _ in range(count):
            bench.ask()
            bench.ask((b"head", b"other"))
        bench.hits.flush_counts()
        bench.hits.flush_counts()
    hits = 2 + 2 * (5 + 7)
    assert [(each.model_name, each.frontend, each.outcome) for each in bench.recorder.records] == [
        ("m", Frontend.HTTP, Outcome.ANSWERED)
    ] * hits
    assert bench.cache.counts == {("m", CacheStatus.HIT): hits}
    await metering.close(1.0)
    ((key, usage),) = [each for batch in store.usage.batches.values() for each in batch.sums]
    assert (key.tenant, key.model) == ("team", "m")
    assert usage == Usage(requests=hits, rows=hits * ROWS, elements=hits * ELEMENTS, cache_hits=hits)


@pytest.mark.virtual_time
async def test_they_are_counted_by_themselves_soon() -> None:
    bench = Bench()
    bench.begin()
    for _ in range(2):
        before = len(bench.recorder.records)
        bench.hits.flush_counts()
        assert [bench.ask() for _ in range(4)] == [("known", ANSWER)] * 4
        assert bench.cache.counts["m", CacheStatus.HIT] == len(bench.recorder.records)
        await asyncio.sleep(0.2)
        assert len(bench.recorder.records) == len(bench.meter.added) == bench.cache.counts["m", CacheStatus.HIT] >= before + 4


@pytest.mark.virtual_time
async def test_hits_of_many_messages_are_counted_before_they_are_more() -> None:
    bench = Bench()
    bench.compute()
    messages: list[MessageKey] = [(b"head", b"%d" % number) for number in range(MOST_UNFLUSHED)]
    for _ in range(2):
        asked = [bench.ask(message)[0] for message in messages]
    assert (asked, len(bench.recorder.records)) == (["known"] * MOST_UNFLUSHED, 2 * MOST_UNFLUSHED)


@pytest.mark.virtual_time
async def test_hits_of_what_is_known_no_longer_are_counted_too() -> None:
    bench = Bench()
    bench.begin()
    bench.ask()
    changed(bench)
    assert bench.ask() == ("nothing", None)
    bench.hits.flush_counts()
    assert len(bench.recorder.records) == 3


@pytest.mark.virtual_time
async def test_a_hit_counts_as_a_use_of_what_is_kept() -> None:
    bench = Bench()
    bench.begin()
    scope = bench.cache.scope("m", None, CALLER.tenant)
    assert scope is not None
    entry = bench.cache.entry(key_in(scope))
    assert entry is not None
    before = entry.last_use
    bench.ask()
    assert entry.last_use == before + 1


@pytest.mark.virtual_time
async def test_one_too_large_is_not_kept() -> None:
    bench = Bench()
    bench.compute(bytes(1 << 15))
    assert [bench.ask()[0] for _ in range(3)] == ["kept"] * 3


@pytest.mark.virtual_time
async def test_a_hit_of_who_is_near_a_rate_that_processes_share_is_not_decided_at_once_and_counts_once() -> None:
    now_s = asyncio.get_running_loop().time
    leases = RateLeases(TokenBuckets(now_s=now_s), now_s=now_s)
    bench = Bench(Tenant("team"), leases=leases)
    bench.begin()
    bench.known.tenants, bench.known.generation = {"team": Tenant("team", requests_per_s=1.0)}, bench.known.generation + 1
    bench.hits.flush_counts()
    before, hits = len(bench.recorder.records), bench.cache.counts["m", CacheStatus.HIT]
    assert bench.hits.answer(MESSAGE) is None
    assert (len(bench.recorder.records), bench.cache.counts["m", CacheStatus.HIT]) == (before, hits), "it is counted where it is decided"
    running = asyncio.get_running_loop().create_task(leases.run())
    request = bench.service.running.begin(Frontend.HTTP, CALLER)
    await request.admit_when_synced()
    request.end(Outcome.ANSWERED)
    assert bench.hits.answer(MESSAGE) is None
    with pytest.raises(LimitExceeded):
        await bench.service.running.governance.admission.admit_when_synced("team")
    with pytest.raises(LimitExceeded):
        bench.ask()
    running.cancel()
    bench.service.verbatim.flush_counts()
