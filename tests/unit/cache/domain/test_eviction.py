"""Eviction policy: values are right after any sequence of calls, memory stays bounded, and hit ratios beat
LRU's.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from hashlib import blake2b
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.cache.domain.eviction import ENTRY_BYTES, CacheEntry, EvictingCache
from control_plane.cache.domain.eviction.ghosts import GhostList
from control_plane.cache.domain.eviction.reuse_rates import AGES, MAX_USES, ReuseRates, row_of

VALUE = bytes(1536)
ENTRY = len(VALUE) + ENTRY_BYTES
LATER_S = 1000.0


def key(number: int) -> bytes:
    return blake2b(b"%d" % number, digest_size=32).digest()


def room_for(entries: int) -> EvictingCache:
    return EvictingCache(entries * ENTRY)


def ask(kept: EvictingCache, numbers: Iterable[int], *, cost_units: float = 1.0) -> list[bool]:
    """Look up keys in turn and return whether each was a hit; each miss is put into the cache."""
    found = []
    for number in numbers:
        found.append(kept.get(key(number), 0.0) is not None)
        if not found[-1]:
            kept.put(key(number), VALUE, cost_units=cost_units, expires_s=LATER_S)
    return found


def popular(seed: int, requests: int, keys: int) -> list[int]:
    """Return a stream of keys with Zipf's popularity (1 / rank)."""
    return Random(seed).choices(range(keys), [1 / rank for rank in range(1, keys + 1)], k=requests)


class TestWhatIsThere:
    @settings(deadline=None)
    @given(
        st.integers(0, 12_000),
        st.lists(
            st.one_of(
                st.tuples(st.just("get"), st.integers(0, 9)),
                st.tuples(st.just("put"), st.integers(0, 9), st.integers(0, 3000), st.floats(0, 100), st.integers(0, 30)),
                st.tuples(st.just("wait"), st.integers(1, 10)),
            ),
            max_size=120,
        ),
    )
    def test_only_what_was_put_last_and_never_more_than_there_is_room_for(self, max_bytes: int, steps: list[tuple]) -> None:
        kept, put, now_s = EvictingCache(max_bytes), {}, 0.0
        for count, (verb, *about) in enumerate(steps):
            if verb == "get":
                value, expires_s = put.get(about[0], (None, 0.0))
                assert kept.get(key(about[0]), now_s) in ((value, None) if expires_s > now_s else (None,))
            elif verb == "put":
                number, size, cost_units, lives_s = about
                put[number] = b"%3d" % (count % 1000) + bytes(size), now_s + lives_s
                kept.put(key(number), put[number][0], cost_units=cost_units, expires_s=put[number][1])
            else:
                now_s += about[0]
            assert kept.held_bytes <= max_bytes
        there = [value for value, _ in put.values() if value in (held.value for held in kept._entries.values())]
        assert kept.held_bytes == sum(len(value) + ENTRY_BYTES for value in there)
        assert len(kept) == len(there)

    def test_all_of_it_while_there_is_room(self) -> None:
        kept = room_for(100)
        ask(kept, range(100))
        assert all(ask(kept, range(100)))
        assert (len(kept), kept.evicted, kept.held_bytes) == (100, 0, kept.max_bytes)

    def test_room_for_more_than_any_machine_has_is_not_taken_before_it_is_needed(self) -> None:
        kept = EvictingCache(10**23)
        assert ask(kept, [1, 1]) == [False, True]

    def test_replaced(self) -> None:
        kept = room_for(2)
        kept.put(key(1), b"old", cost_units=1.0, expires_s=LATER_S)
        kept.put(key(1), b"newer", cost_units=1.0, expires_s=LATER_S)
        assert kept.get(key(1), 0.0) == b"newer"
        assert (len(kept), kept.held_bytes, kept.evicted) == (1, 5 + ENTRY_BYTES, 0)

    def test_expired_at_its_time(self) -> None:
        kept = room_for(2)
        kept.put(key(1), b"value", cost_units=1.0, expires_s=10.0)
        assert kept.get(key(1), 9.9) == b"value"
        assert kept.get(key(1), 10.0) is None
        assert (len(kept), kept.held_bytes) == (0, 0)

    @pytest.mark.parametrize("room", [0, ENTRY - 1])
    def test_larger_than_all_the_room(self, room: int) -> None:
        kept = EvictingCache(room)
        kept.put(key(1), VALUE, cost_units=1e9, expires_s=LATER_S)
        assert kept.get(key(1), 0.0) is None
        assert (len(kept), kept.evicted) == (0, 0)

    def test_too_large_a_successor_does_not_leave_the_old_one(self) -> None:
        kept = room_for(1)
        kept.put(key(1), b"old", cost_units=1.0, expires_s=LATER_S)
        kept.put(key(1), bytes(ENTRY), cost_units=1.0, expires_s=LATER_S)
        assert kept.get(key(1), 0.0) is None

    def test_memory_is_what_it_says(self) -> None:
        kept, entries = room_for(1500), 3000
        tracemalloc.start()
        try:
            for number in range(entries):
                kept.put(key(number), bytes(len(VALUE)), cost_units=1.5 + number, expires_s=LATER_S + number)
            for held in list(kept._entries):
                kept.get(held, 0.0)
            taken = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert len(kept) == 1500
        assert 0.9 * kept.max_bytes < taken <= kept.max_bytes

    def test_memory_of_what_was_replaced_is_free_at_once(self) -> None:
        kept, size = room_for(1000), 10_000
        tracemalloc.start()
        try:
            for _ in range(500):
                kept.put(key(1), bytes(size), cost_units=1.0, expires_s=LATER_S)
            taken = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert kept.held_bytes == size + ENTRY_BYTES
        assert taken < 10 * size

    def test_the_first_eviction_looks_at_no_more_entries_than_any_other(self) -> None:
        class Counting(EvictingCache):
            looked_at = 0

            def _worth(self, kept: CacheEntry) -> float:
                self.looked_at += 1
                return super()._worth(kept)

        kept = Counting(2000 * ENTRY)
        ask(kept, range(2000))
        assert kept.looked_at == 0
        ask(kept, [2000])
        assert kept.evicted == 1
        assert kept.looked_at < 100

    def test_equal_requests_leave_equal_entries(self) -> None:
        requests = popular(1, 4000, 500)
        first, second = room_for(50), room_for(50)
        assert ask(first, requests) == ask(second, requests)
        assert list(first._entries) == list(second._entries)


class TestEntries:
    """`entry` and `reuse`, for a caller that asks for the same entry over and over."""

    @pytest.mark.parametrize("seed", range(3))
    def test_a_use_by_its_entry_counts_as_one_by_its_key(self, seed: int) -> None:
        by_key, by_entry = room_for(50), room_for(50)
        entries: dict[int, CacheEntry] = {}
        for number in popular(seed, 6000, 300):
            found = ask(by_key, [number])
            if number not in entries or not by_entry.reuse(entries[number], 0.0):
                assert ask(by_entry, [number]) == found == [False]
                entry = by_entry.entry(key(number))
                if entry is not None:
                    entries[number] = entry
            else:
                assert found == [True]
        assert list(by_entry._entries) == list(by_key._entries)
        assert by_entry.evicted == by_key.evicted > 1000

    def test_none_of_what_is_not_there(self) -> None:
        assert room_for(2).entry(key(1)) is None

    @pytest.mark.parametrize("ends", ["replaced", "removed", "evicted"])
    def test_not_what_is_gone(self, ends: str) -> None:
        kept = room_for(2)
        kept.put(key(1), VALUE, cost_units=1.0, expires_s=10.0)
        entry = kept.entry(key(1))
        assert entry is not None
        assert kept.reuse(entry, 0.0)
        if ends == "replaced":
            kept.put(key(1), VALUE, cost_units=1.0, expires_s=10.0)
            assert kept.entry(key(1)) is not entry
        elif ends == "removed":
            assert kept.get(key(1), 10.0) is None
        else:
            for number in range(2, 20):
                kept.put(key(number), VALUE, cost_units=1e6, expires_s=LATER_S)
            assert kept.entry(key(1)) is None
        assert not kept.reuse(entry, 0.0)

    def test_expired_at_its_time(self) -> None:
        kept = room_for(2)
        kept.put(key(1), b"value", cost_units=1.0, expires_s=10.0)
        entry = kept.entry(key(1))
        assert entry is not None
        assert [kept.reuse(entry, now_s) for now_s in (9.9, 10.0)] == [True, False]


class TestWhatIsKept:
    def test_what_costs_more(self) -> None:
        """All keys are equally popular, and there is room for half of them."""
        kept, random = room_for(100), Random(1)
        found = {1.0: 0, 10.0: 0}
        for _ in range(6000):
            number = random.randrange(200)
            cost_units = 10.0 if number % 2 else 1.0
            found[cost_units] += sum(ask(kept, [number], cost_units=cost_units))
        assert found[10.0] > 5 * found[1.0]

    def test_what_is_smaller(self) -> None:
        kept, random = EvictingCache(100 * 4096), Random(1)
        found = {1024: 0, 10 * 1024: 0}
        for _ in range(6000):
            number = random.randrange(200)
            size = 10 * 1024 if number % 2 else 1024
            if kept.get(key(number), 0.0) is not None:
                found[size] += 1
            else:
                kept.put(key(number), bytes(size), cost_units=1.0, expires_s=LATER_S)
        assert found[1024] > 2 * found[10 * 1024]

    @pytest.mark.parametrize(("cost_units", "places"), [(1.0, 0), (1e5, 100)])
    def test_a_large_one_takes_many_places_only_if_it_is_worth_them(self, cost_units: float, places: int) -> None:
        kept = room_for(200)
        ask(kept, popular(1, 5000, 400))
        kept.put(key(1000), bytes(100 * ENTRY - ENTRY_BYTES), cost_units=cost_units, expires_s=LATER_S)
        assert (kept.get(key(1000), 0.0) is not None) == (places > 0)
        small = len(kept) - (places > 0)
        assert small == pytest.approx(200 - places, abs=5)

    def test_a_scan_pushes_nothing_out(self) -> None:
        """LRU would have evicted all of them."""
        kept, random, often = room_for(200), Random(1), range(100)
        ask(kept, (random.randrange(150) if random.random() < 0.8 else 10_000 + count for count in range(4000)))
        ask(kept, range(100_000, 100_600))
        assert sum(ask(kept, often)) >= 90

    def test_a_scan_beside_others(self) -> None:
        """LRU would hit a third of the popular keys' requests: each comes once in 500 requests, on
        average.
        """
        kept, random = room_for(200), Random(1)
        found = [ask(kept, [random.randrange(100), *range(10_000 + 4 * turn, 10_004 + 4 * turn)])[0] for turn in range(4000)]
        assert sum(found[-2000:]) > 0.9 * 2000

    def test_a_loop_larger_than_the_room(self) -> None:
        """LRU would hit nothing; the optimum is a hit ratio of one half."""
        kept = room_for(200)
        found = ask(kept, list(range(400)) * 20)
        assert sum(found[-4000:]) > 0.4 * 4000

    def test_what_was_popular_goes(self) -> None:
        kept = room_for(100)
        ask(kept, popular(1, 20_000, 100))
        new = [1000 + number for number in popular(2, 3000, 100)]
        assert sum(ask(kept, new)[-1000:]) > 950

    def test_what_has_expired_goes_first(self) -> None:
        kept = room_for(100)
        for number in range(100):
            kept.put(key(number), VALUE, cost_units=100.0 if number < 50 else 1.0, expires_s=5.0 if number < 50 else LATER_S)
        kept.get(b"missing", 5.0)
        for number in range(200, 240):
            kept.put(key(number), VALUE, cost_units=1.0, expires_s=LATER_S)
        assert sum(kept.get(key(number), 0.0) is None for number in range(50)) >= 35

    def test_more_hits_than_lru(self) -> None:
        """Half of the requests are for keys that come only once; LRU has a hit ratio of 22 %."""
        kept = room_for(100)
        requests = [number if number % 2 else 10_000 + count for count, number in enumerate(popular(3, 20_000, 2000))]
        assert sum(ask(kept, requests)) / len(requests) > 0.25


class TestReuseRates:
    @staticmethod
    def index(rates: ReuseRates, row: int, age: int) -> float:
        at = row + (age * 2 // 3).bit_length()
        return rates.start[at] + rates.slope[at] * age

    def test_nothing_seen_is_lru(self) -> None:
        rates, row = ReuseRates(), row_of(0, 0)
        indices = [self.index(rates, row, age) for age in (1, 2, 3, 5, 10, 100, 1000, 10**6, 10**9)]
        assert indices == sorted(indices, reverse=True)
        assert indices[-1] > 0

    def test_nothing_seen_is_the_prior_of_every_class(self) -> None:
        rates, learned = ReuseRates(), ReuseRates()
        learned.learn(2 ** (AGES - 2))
        assert (rates.start, rates.slope) == (learned.start, learned.slope)
        assert all(rates.start)

    def test_a_constant_rate_is_the_index(self) -> None:
        rates, row = ReuseRates(), row_of(2, 50)
        for octave in range(1, 12):
            rates.seen[row + octave], rates.waited[row + octave] = 1e4, 1e6
        rates.learn(2**11)
        for age in (3, 20, 700):
            assert self.index(rates, row, age) == pytest.approx(0.01, rel=0.05)

    def test_what_is_asked_for_at_an_interval_is_worth_more_the_nearer_it_comes(self) -> None:
        rates, row = ReuseRates(), row_of(2, 1000)
        for octave in range(1, 11):
            rates.seen[row + octave], rates.waited[row + octave] = (1000 if octave == 10 else 0), 1000 * 2 ** (octave - 1)
        rates.learn(2**12)
        indices = [self.index(rates, row, age) for age in (2, 200, 400, 700)]
        assert indices == sorted(indices)
        assert self.index(rates, row, 3000) < indices[0]

    def test_what_was_seen_counts_for_less_and_less(self) -> None:
        rates = ReuseRates()
        rates.seen[3] = rates.waited[3] = 100.0
        rates.learn(256)
        assert rates.seen[3] == rates.waited[3] == pytest.approx(99.0)

    def test_every_row_has_its_place(self) -> None:
        rows = {row_of(uses, 2**octave) for uses in range(1, MAX_USES + 1) for octave in range(AGES - 1)}
        assert len(rows) == 4 * (AGES - 1)
        assert max(rows) + AGES == len(ReuseRates().seen)


class TestForgotten:
    @given(st.integers(0, 2**39), st.integers(1, MAX_USES), st.integers(1, 2**38), st.integers(1, 2**32 - 1))
    def test_comes_back_with_its_age_and_history(self, last_use: int, uses: int, interval: int, age: int) -> None:
        forgotten = GhostList(64)
        forgotten.put(key(1), last_use, uses, interval)
        found = forgotten.pop(key(1), last_use + age)
        assert found is not None
        row, found_age, found_uses, found_interval = found
        assert (row, found_age, found_uses) == (row_of(uses, interval), age, uses)
        assert found_interval.bit_length() == interval.bit_length()
        assert forgotten.pop(key(1), last_use + age) is None

    def test_one_never_used_again(self) -> None:
        forgotten = GhostList(64)
        forgotten.put(key(1), 10, 0, 0)
        assert forgotten.pop(key(1), 15) == (row_of(0, 0), 5, 0, 0)

    def test_another_key_in_its_slot(self) -> None:
        forgotten = GhostList(1)
        forgotten.put(key(1), 10, 1, 1)
        assert forgotten.pop(key(2), 20) is None
        forgotten.put(key(2), 15, 1, 1)
        assert forgotten.pop(key(1), 20) is None
        assert forgotten.pop(key(2), 20) is not None

    def test_a_sample_has_only_slots_that_are_taken(self) -> None:
        forgotten = GhostList(2)
        assert list(forgotten.some(Random(1).random, 20)) == []
        forgotten.put(key(1), 10, 2, 7)
        assert set(forgotten.some(Random(1).random, 20)) == {(row_of(2, 7), 10)}

    def test_without_room_it_remembers_the_last_one(self) -> None:
        assert len(GhostList(0)) == 1
