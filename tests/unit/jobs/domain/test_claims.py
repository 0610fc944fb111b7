from __future__ import annotations

import random
from collections import Counter, OrderedDict

import pytest

from control_plane.jobs.domain.claims import HEADS, MORE_HEADS, TenantQueue, WaitingJob, are_too_few, more_heads, rank
from control_plane.jobs.domain.job import PASSED_OVER_S, PriceClass, due_s_of

STANDARD, ECONOMY = PriceClass.STANDARD, PriceClass.ECONOMY


def waiting(name: str, due_s: float = 500.0, model: str = "m", price_class: PriceClass = STANDARD) -> WaitingJob:
    return WaitingJob(name, model, due_s, price_class)


def queue(tenant: str, *jobs: WaitingJob, running: int = 0, last_claimed_s: float = 0.0) -> TenantQueue:
    return TenantQueue(tenant, running, last_claimed_s, jobs)


def ranked(*queues: TenantQueue, hot: str = "", weights: dict[str, float] | None = None) -> list[str]:
    return rank(queues, now_s=100.0, is_hot=lambda model: model == hot, weight_of=lambda tenant: (weights or {}).get(tenant, 1.0))


@pytest.mark.parametrize(
    ("queues", "expected"),
    [
        pytest.param([], "", id="nothing"),
        pytest.param([queue("t", waiting("a", 300), waiting("b", 200))], "b a", id="earliest-due"),
        pytest.param([queue("t", waiting("a", 200), waiting("b", 300, "hot"))], "b a", id="loaded-model-first"),
        pytest.param([queue("t", waiting("a", 100), waiting("b", 300, "hot"))], "a b", id="not-passed-over-any-longer"),
        pytest.param([queue("t", waiting("a", 200, "hot", ECONOMY), waiting("b", 300))], "b a", id="economy-waits"),
        pytest.param([queue("t", waiting("a", 99, "m", ECONOMY), waiting("b", 300))], "a b", id="economy-whose-time-has-come"),
        pytest.param([queue("t", waiting("a", 200, "m", ECONOMY)), queue("u", waiting("b"))], "b a", id="economy-of-another-tenant"),
        pytest.param([queue("t", waiting("a"), running=1), queue("u", waiting("b"))], "b a", id="least-running"),
        pytest.param([queue("t", waiting("a"), last_claimed_s=5), queue("u", waiting("b"), last_claimed_s=4)], "b a", id="in-turns"),
        pytest.param([queue("t", waiting("a"), waiting("c")), queue("u", waiting("b"))], "a b c", id="one-each"),
    ],
)
def test_the_best_job_is_first(queues: list[TenantQueue], expected: str) -> None:
    assert ranked(*queues, hot="hot") == expected.split()


def test_claims_follow_the_weights() -> None:
    queues = [queue(tenant, *(waiting(f"{tenant}{number}") for number in range(8))) for tenant in "abc"]

    first = Counter(name[0] for name in ranked(*queues, weights={"a": 4.0, "b": 2.0})[:7])

    assert first == {"a": 4, "b": 2, "c": 1}


def test_a_tenant_with_fifty_times_the_jobs_delays_another_by_no_more_than_its_share() -> None:
    """One slot, jobs of one second: each tenant is served in every second round, so the small one's median is the same as
    beside a tenant with as many jobs as its own."""

    def median(others: int) -> float:
        left = {"big": [f"b{number}" for number in range(others)], "small": [f"s{number}" for number in range(10)]}
        last, done, now_s = {"big": 0.0, "small": 0.0}, [], 100.0
        while any(left.values()):
            queues = [queue(name, *map(waiting, jobs[:HEADS]), last_claimed_s=last[name]) for name, jobs in left.items() if jobs]
            first = rank(queues, now_s=now_s, is_hot=lambda model: False, weight_of=lambda tenant: 1.0)[0]
            tenant = "big" if first.startswith("b") else "small"
            left[tenant].remove(first)
            last[tenant], now_s = now_s, now_s + 1.0
            if tenant == "small":
                done.append(now_s)
        return done[len(done) // 2] - 100.0

    assert median(500) <= 1.5 * median(10)


@pytest.mark.parametrize("slots", [1, 4, 8])
def test_many_models_in_turns_are_each_loaded_about_once(slots: int) -> None:
    """Sixteen models mixed, of which four fit, in virtual time: at most two loads for each of them."""
    models = [f"m{number % 16}" for number in range(800)]
    random.Random(1).shuffle(models)
    left = [waiting(f"{number:03}", 600.0, model) for number, model in enumerate(models)]
    hot, loads = OrderedDict[str, None](), 0
    while left:
        queues = [queue("t", *left[:HEADS])]
        if are_too_few(queues, heads=HEADS, is_hot=hot.__contains__):
            queues = [queue("t", *left[:MORE_HEADS])]
        best = rank(queues, now_s=100.0, is_hot=hot.__contains__, weight_of=lambda tenant: 1.0)[:slots]
        for job in [next(job for job in left if job.id == name) for name in best]:
            left.remove(job)
            loads += job.model not in hot
            hot[job.model] = None
            hot.move_to_end(job.model)
            if len(hot) > 4:
                hot.popitem(last=False)

    assert loads <= 2 * 16


@pytest.mark.parametrize(
    ("queues", "expected"),
    [
        pytest.param([queue("t", *(waiting(str(number), model="cold") for number in range(8)))], False, id="one-model"),
        pytest.param([queue("t", *(waiting(str(number), model=f"hot{number}") for number in range(8)))], False, id="all-loaded"),
        pytest.param([queue("t", *(waiting(str(number), model=f"m{number}") for number in range(7)))], False, id="no-more"),
        pytest.param([queue("u"), queue("t", *(waiting(str(number), model=f"m{number}") for number in range(8)))], True, id="more"),
    ],
)
def test_more_jobs_are_looked_at_where_others_may_need_no_load(queues: list[TenantQueue], expected: bool) -> None:
    assert are_too_few(queues, heads=8, is_hot=lambda model: model.startswith("hot")) is expected


@pytest.mark.parametrize(("tenants", "expected"), [(1, 512), (8, 512), (100, 40), (10_000, 8)])
def test_how_many_more_are_looked_at_is_bounded_over_all_tenants(tenants: int, expected: int) -> None:
    assert more_heads(tenants) == expected


@pytest.mark.parametrize("price_class", PriceClass)
def test_nobody_is_passed_over_for_longer_than_its_limit(price_class: PriceClass) -> None:
    limit_s = PASSED_OVER_S[price_class]

    assert due_s_of(price_class, submitted_s=10.0, deadline_s=1e9) == 10.0 + limit_s
    assert due_s_of(price_class, submitted_s=10.0, deadline_s=12.0) == 11.0
    late = queue("t", waiting("late", 100.0, "cold", price_class), *(waiting(f"hot{each}", 101.0, "hot") for each in range(7)))
    assert ranked(late, hot="hot")[0] == "late"
