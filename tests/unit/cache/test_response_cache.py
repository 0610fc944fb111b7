from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.cache.domain.eviction import EvictingCache
from control_plane.cache.keys import CacheScope
from control_plane.cache.response_cache import ResponseCache
from control_plane.core.fingerprint import Fingerprint
from control_plane.models.fingerprints import Fingerprints
from control_plane.objects.domain.route import CachePolicy, Route
from tests.aio import run
from tests.fakes.stores.shared_cache import FakeSharedCache

DECLARED = Fingerprint(b"d" * 32, is_cacheable=True)


class Shared(FakeSharedCache):
    """Fake shared cache that also records what it was asked and with which TTLs."""

    def __init__(self) -> None:
        super().__init__()
        self.ttls_s: list[float] = []
        self.asked: list[tuple[list[bytes], float]] = []

    async def get(self, keys: Sequence[bytes], *, computing_s: float) -> list[bytes | None]:
        self.asked.append((list(keys), computing_s))
        return await super().get(keys, computing_s=computing_s)

    def put(self, key: bytes, value: bytes, *, ttl_s: float) -> None:
        self.ttls_s.append(ttl_s)
        super().put(key, value, ttl_s=ttl_s)


class Bench:
    def __init__(self, shared: Shared | None = None) -> None:
        self.fingerprints = Fingerprints()
        self.fingerprints.change({"m": DECLARED})
        self.now_s = 0.0
        self.purges: dict[str, str] = {}
        self.cache = ResponseCache(
            self.fingerprints,
            EvictingCache(1 << 20),
            shared,
            generation_of=lambda model: self.purges.get(model, ""),
            max_entry_bytes=100,
            ttl_s=60.0,
            now_s=lambda: self.now_s,
            today_s=lambda: 1.7e9 + self.now_s,
        )

    def scope(self, policy: CachePolicy | None = None, *, tenant: str = "team", route: str = "r") -> CacheScope:
        scope = self.cache.scope("m", Route(route, "m", cache=policy) if policy is not None else None, tenant)
        assert scope is not None
        return scope


class TestScope:
    @pytest.mark.parametrize(
        ("is_cacheable", "policy", "kept"),
        [
            (True, None, True),
            (False, None, False),
            (True, CachePolicy(), True),
            (False, CachePolicy(), False),
            (True, CachePolicy(is_on=False), False),
            (False, CachePolicy(is_on=True), True),
        ],
    )
    def test_the_route_decides_and_else_the_model(self, is_cacheable: bool, policy: CachePolicy | None, kept: bool) -> None:
        bench = Bench()
        bench.fingerprints.change({"m": Fingerprint(b"d" * 32, is_cacheable=is_cacheable)})
        route = Route("r", "m", cache=policy) if policy is not None else None
        assert (bench.cache.scope("m", route, "team") is not None) is kept

    def test_what_cannot_repeat_is_not_kept_whatever_a_route_says(self) -> None:
        bench = Bench()
        bench.fingerprints.change({"m": Fingerprint(b"d" * 32, is_cacheable=True, is_repeatable=False)})
        assert bench.cache.scope("m", Route("r", "m", cache=CachePolicy(is_on=True)), "team") is None

    def test_of_what_is_not_known_for_certain_nothing_is_kept(self) -> None:
        bench = Bench()
        bench.fingerprints.change({"m": None})
        assert bench.cache.scope("m", Route("r", "m", cache=CachePolicy(is_on=True)), "team") is None

    def test_while_a_load_is_under_way_requests_may_be_computed_twice_as_before(self) -> None:
        bench = Bench()
        assert not bench.cache.is_repeatable("n", None), "it was never known"
        off, on = (Route("r", "m", cache=CachePolicy(is_on=is_on)) for is_on in (False, True))
        for _ in range(2):
            assert [bench.cache.is_repeatable("m", each) for each in (None, off, on)] == [True, False, True]
            bench.fingerprints.change({"m": None})
        bench.fingerprints.change({"m": Fingerprint(b"d" * 32, is_cacheable=False)})
        assert [bench.cache.is_repeatable("m", each) for each in (None, off, on)] == [False, False, True]
        bench.fingerprints.change({"m": Fingerprint(b"d" * 32, is_cacheable=True, is_repeatable=False)})
        assert [bench.cache.is_repeatable("m", each) for each in (None, off, on)] == [False, False, False]
        declared = Fingerprint(b"d" * 32, is_cacheable=False, may_be_computed_twice=True)
        bench.fingerprints.change({"m": declared})
        assert [bench.cache.is_repeatable("m", each) for each in (None, off, on)] == [True, True, True]
        assert bench.cache.scope("m", None, "t") is None

    def test_what_changes_a_key(self) -> None:
        bench = Bench()
        keys = [bench.scope().key(b"a", b"b")]
        keys.append(bench.scope().key(b"ab", b""))
        keys.append(bench.scope().key(b"a", b"c"))
        keys.append(bench.scope(CachePolicy(is_private=True)).key(b"a", b"b"))
        keys.append(bench.scope(CachePolicy(is_private=True), tenant="other").key(b"a", b"b"))
        keys.append(bench.scope(CachePolicy(is_private=True), tenant="").key(b"a", b"b"))
        keys.append(bench.scope(CachePolicy(ttl_s=5.0)).key(b"a", b"b"))
        bench.purges["m"] = "1"
        keys.append(bench.scope().key(b"a", b"b"))
        bench.fingerprints.change({"m": Fingerprint(b"e" * 32, is_cacheable=True), "n": DECLARED})
        keys.append(bench.scope().key(b"a", b"b"))
        other = bench.cache.scope("n", None, "team")
        assert other is not None
        keys.append(other.key(b"a", b"b"))
        assert len(set(keys)) == len(keys) - 1, "a private key of nobody is everybody's: there is one tenant only"

    def test_what_does_not_change_a_key(self) -> None:
        bench = Bench()
        keys = {bench.scope().key(b"a"), bench.scope(tenant="other").key(b"a"), bench.scope(CachePolicy(), route="s").key(b"a")}
        bench.fingerprints.change({"m": Fingerprint(DECLARED.digest, is_cacheable=True)})
        assert {*keys, bench.scope().key(b"a")} == keys

    @given(st.lists(st.binary(max_size=12), min_size=3, max_size=3), st.lists(st.binary(max_size=12), min_size=3, max_size=3))
    def test_different_parts_have_different_keys(self, one: list[bytes], other: list[bytes]) -> None:
        scope = Bench().scope()
        assert (scope.key(*one) == scope.key(*other)) is (one == other)


class TestKeeping:
    def keep(self, bench: Bench, scope: CacheScope, value: bytes = b"value", *, cost_units: float = 1.0) -> bytes | None:
        key = scope.key(b"k")
        bench.cache.put(scope, key, value, cost_units=cost_units)
        return bench.cache.get_local(key)

    def test_what_is_kept_is_found(self) -> None:
        bench = Bench()
        assert self.keep(bench, bench.scope()) == b"value"

    @pytest.mark.parametrize(("policy", "lasts_s"), [(None, 60.0), (CachePolicy(ttl_s=5.0), 5.0)])
    def test_until_it_expires(self, policy: CachePolicy | None, lasts_s: float) -> None:
        bench = Bench()
        scope = bench.scope(policy)
        self.keep(bench, scope)
        bench.now_s = lasts_s - 0.1
        assert bench.cache.get_local(scope.key(b"k")) == b"value"
        bench.now_s = lasts_s
        assert bench.cache.get_local(scope.key(b"k")) is None

    def test_what_costs_too_little_or_is_too_large_is_not(self) -> None:
        bench = Bench()
        assert self.keep(bench, bench.scope(CachePolicy(min_cost_units=2.0)), cost_units=1.9) is None
        assert self.keep(bench, bench.scope(), b"x" * 101) is None
        assert self.keep(bench, bench.scope(CachePolicy(min_cost_units=2.0)), b"x" * 100, cost_units=2.0) == b"x" * 100

    def test_what_was_computed_while_the_model_was_loaded_anew_is_not(self) -> None:
        bench = Bench()
        scope = bench.scope()
        bench.fingerprints.change({"m": None})
        assert self.keep(bench, scope) is None
        bench.fingerprints.change({"m": Fingerprint(DECLARED.digest, is_cacheable=True)})
        assert self.keep(bench, scope) is None, "the same content: but in between there was another"

    def test_what_was_computed_before_a_purge_is_not(self) -> None:
        bench = Bench()
        scope = bench.scope()
        bench.purges["m"] = "1"
        assert self.keep(bench, scope) is None


class TestLevelTwo:
    def test_it_is_asked_for_what_level_one_lacks_and_level_one_has_it_then(self) -> None:
        shared = Shared()
        one, other = Bench(shared), Bench(shared)
        scope = other.scope()
        keys = [scope.key(text) for text in (b"a", b"b", b"c")]
        other.cache.put(scope, keys[0], b"A", cost_units=1.0)
        shared.cache.entries.clear()
        one.cache.put(one.scope(), keys[1], b"B", cost_units=1.0)
        assert run(other.cache.get_many(scope, keys, cost_units=None, timeout_s=30.0)) == [b"A", b"B", None]
        assert [asked for asked, _ in shared.asked] == [keys[1:]]
        assert other.cache.get_local(keys[1]) == b"B"

    def test_what_it_has_is_as_old_as_it_is(self) -> None:
        shared = Shared()
        one, other = Bench(shared), Bench(shared)
        key = one.scope().key(b"a")
        one.cache.put(one.scope(), key, b"A", cost_units=1.0)
        other.now_s = 59.0
        assert run(other.cache.find_shared(other.scope(), key, cost_units=None, timeout_s=30.0)) == b"A"
        other.now_s = 60.0
        assert other.cache.get_local(key) is None
        assert run(other.cache.find_shared(other.scope(), key, cost_units=None, timeout_s=30.0)) is None

    async def test_of_many_values_a_few_are_copied_in_a_turn(self) -> None:
        shared = Shared()
        one, other = Bench(shared), Bench(shared)
        keys = [one.scope().key(b"%d" % number) for number in range(200)]
        for key in keys:
            one.cache.put(one.scope(), key, b"A", cost_units=1.0)
        looking = other.cache.get_many(other.scope(), keys, cost_units=None, timeout_s=30.0)
        asking, copied = asyncio.get_running_loop().create_task(looking), [0]
        while not asking.done():
            await asyncio.sleep(0)
            copied.append(other.cache.holding.entries)
        assert (asking.result(), copied[-1]) == ([b"A"] * 200, 200)
        assert max(after - before for before, after in pairwise(copied)) <= 64

    def test_a_gateway_whose_clock_is_behind_keeps_it_no_longer_than_what_it_computes(self) -> None:
        shared = Shared()
        one, behind = Bench(shared), Bench(shared)
        key = one.scope().key(b"a")
        one.cache.put(one.scope(), key, b"A", cost_units=1.0)
        behind.now_s = -3600.0
        assert run(behind.cache.find_shared(behind.scope(), key, cost_units=None, timeout_s=30.0)) == b"A"
        behind.now_s += 59.0
        assert behind.cache.get_local(key) == b"A"
        behind.now_s += 1.0
        assert behind.cache.get_local(key) is None

    @pytest.mark.parametrize("value", [b"", b"short"])
    def test_what_is_no_value_is_not_there(self, value: bytes) -> None:
        shared = Shared()
        bench = Bench(shared)
        shared.put(b"k", value, ttl_s=60.0)
        assert run(bench.cache.find_shared(bench.scope(), b"k", cost_units=None, timeout_s=30.0)) is None

    def test_it_is_not_asked_without_need(self) -> None:
        shared = Shared()
        bench = Bench(shared)
        scope = bench.scope()
        bench.cache.put(scope, scope.key(b"a"), b"A", cost_units=1.0)
        assert run(bench.cache.get_many(scope, [scope.key(b"a")], cost_units=None, timeout_s=30.0)) == [b"A"]
        assert shared.asked == []

    def test_it_gets_what_is_kept_for_as_long(self) -> None:
        shared = Shared()
        bench = Bench(shared)
        scope = bench.scope(CachePolicy(ttl_s=5.0))
        bench.cache.put(scope, scope.key(b"a"), b"A", cost_units=1.0)
        assert (list(shared.cache.entries), shared.ttls_s) == ([scope.key(b"a")], [5.0])

    @pytest.mark.parametrize(
        ("took_s", "their_units", "cost_units", "computing_s"),
        [
            pytest.param([], None, None, 0.025, id="nothing is known"),
            pytest.param([], None, 1000.0, 1.0, id="only its units are"),
            pytest.param([], None, 3.0, 0.025, id="and they are few"),
            pytest.param([0.013], None, None, 0.013, id="what it took before"),
            pytest.param([0.013, 10.0, 0.013], 3.0, 3.0, 0.013, id="usually"),
            pytest.param([0.013], 3.0, 1000.0, 1.01, id="and what a larger request takes longer"),
            pytest.param([0.013], 3.0, None, 0.010, id="one whose units nobody knows"),
            pytest.param([0.002], 3.0, 3.0, 0.003, id="in a batch of several"),
        ],
    )
    def test_it_is_told_what_computing_takes_here(
        self, took_s: list[float], their_units: float | None, cost_units: float | None, computing_s: float
    ) -> None:
        """With all that adds to its compute units in this process, as the same adds to the answers of level
        two.
        """
        shared = Shared()
        bench = Bench(shared)
        scope = bench.scope()
        for each_s in took_s:
            bench.cache.record_compute_time(scope, each_s, cost_units=their_units)
        assert run(bench.cache.find_shared(scope, scope.key(b"a"), cost_units=cost_units, timeout_s=30.0)) is None
        assert [told_s for _, told_s in shared.asked] == [pytest.approx(computing_s)]

    def test_it_is_told_of_all_keys_together_and_of_what_the_caller_has_left(self) -> None:
        shared = Shared()
        bench = Bench(shared)
        scope = bench.scope()
        bench.cache.record_compute_time(scope, 0.1, cost_units=0.0)
        keys = [scope.key(text) for text in (b"a", b"b")]
        assert run(bench.cache.get_many(scope, keys, cost_units=200.0, timeout_s=30.0)) == [None, None]
        assert run(bench.cache.get_many(scope, keys, cost_units=200.0, timeout_s=0.2)) == [None, None]
        assert [told_s for _, told_s in shared.asked] == [pytest.approx(0.3), 0.2]

    def test_without_it_nothing_is_found(self) -> None:
        bench = Bench()
        assert run(bench.cache.find_shared(bench.scope(), b"k", cost_units=None, timeout_s=30.0)) is None
