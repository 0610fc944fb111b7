"""Each policy keeps within its room, finds what it must, and never finds more than one that knows the future."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from perf.eviction.__main__ import simulate
from perf.eviction.bounds import most_hits
from perf.eviction.report import BOUND, Case
from perf.eviction.traces import Trace, numbered
from perf.policies import OURS, POLICIES, Policy

SIZE = 2000
BY_BYTES = {name: make for name, make in POLICIES.items() if name != "theine"}
each_policy = pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES)
Make = Callable[[int, int], Policy]


def popular(requests: int, keys: int) -> list[int]:
    return numbered(Random(1).choices(range(keys), [1 / rank for rank in range(1, keys + 1)], k=requests))


def hits(policy: Policy, keys: list[int]) -> int:
    return sum(policy.use(key, SIZE, 1.0) for key in keys)


@each_policy
def test_all_while_there_is_room(make: Make) -> None:
    policy = make(100 * SIZE, 100)
    keys = popular(2000, 50)
    assert hits(policy, keys) == 2000 - len(set(keys))


@each_policy
def test_never_more_than_the_bound_and_more_than_chance(make: Make) -> None:
    keys = popular(20_000, 1000)
    found = hits(make(100 * SIZE, 100), keys)
    assert 0.4 * 20_000 < found <= most_hits(keys, 100)


@each_policy
def test_within_its_room(make: Make) -> None:
    """What is found when every key is asked for once was all there before."""
    policy = make(20 * SIZE, 20)
    hits(policy, popular(5000, 300))
    assert 0 < hits(policy, list(range(300))) <= 20


@pytest.mark.parametrize("make", BY_BYTES.values(), ids=list(BY_BYTES))
def test_larger_than_the_room(make: Make) -> None:
    policy = make(20 * SIZE, 20)
    assert not policy.use(1, 21 * SIZE, 1.0)
    assert not policy.use(1, 21 * SIZE, 1.0)


def test_lru_is_lru() -> None:
    policy = POLICIES["LRU"](2 * SIZE, 2)
    assert [policy.use(key, SIZE, 1.0) for key in (1, 2, 1, 3, 2, 1)] == [False, False, True, False, False, False]


def test_a_case() -> None:
    trace = Trace("t", "made", popular(3000, 200), [1.0] * 100 + [3.0] * 200)
    bound, ours = (simulate(trace, Case("t", 10, policy)) for policy in (BOUND, OURS))
    assert 0 < ours.hit_ratio < 1
    assert ours.saved_part == pytest.approx(ours.saved_ms / trace.cost_ms_of_all())
    assert ours.saved_ms < bound.saved_ms
    assert simulate(trace, Case("t", 0.001, "LRU")).hit_ratio < 0.2
