from __future__ import annotations

from control_plane.core.infer_call import CacheStatus, Frontend, Outcome
from control_plane.telemetry.request_counts import (
    BudgetCount,
    CacheSize,
    CacheStatusCount,
    ComputedCount,
    Copied,
    CopiedCount,
    CopiedDurations,
    DeliveryCount,
    DurationHistogram,
    FleetRefusalCount,
    Half,
    HedgeCount,
    OutcomeCount,
    QueryOfDeathCounts,
    RequestCounts,
    RetryCount,
    UnitsCount,
    WaitHistogram,
    total,
)
from control_plane.telemetry.shared_cache_counts import SharedCacheCounts
from control_plane.telemetry.work_counts import WorkCounts

A = RequestCounts(
    (OutcomeCount("m", Frontend.HTTP, Outcome.ANSWERED, 3),),
    (DurationHistogram("m", Frontend.HTTP, (1, 2), 0.5),),
    in_flight=4,
    loop_late_s=0.3,
    units=(UnitsCount("t", 1.5),),
    computed=(ComputedCount("m", 2),),
    cached=(CacheStatusCount("m", CacheStatus.HIT, 3),),
    holding=CacheSize(2, 20, 200),
    shared_cache=SharedCacheCounts(hits=3, late=1),
    shared_cache_away=1,
    shared_cache_answer_s=0.002,
    refused=(FleetRefusalCount("in_use", 1),),
    waited=WaitHistogram((1, 2), 0.5),
    retries=(RetryCount("resend", True, 1),),
    queries_of_death=QueryOfDeathCounts(found=1, refused=7),
    hedges=(HedgeCount("won", 2),),
    hedged_units=1.5,
    copied=(CopiedCount("r", "n", Copied.BUSY, 1),),
    copied_took=(CopiedDurations("r", "n", Half.COPY, (1, 2), 0.5),),
    budgets=(BudgetCount("latency", "r", "m", "within", 2),),
    deliveries=(DeliveryCount("webhook", "pending", 2),),
)
B = RequestCounts(
    (OutcomeCount("m", Frontend.HTTP, Outcome.ANSWERED, 10), OutcomeCount("m", Frontend.GRPC, Outcome.ANSWERED, 1)),
    (DurationHistogram("m", Frontend.HTTP, (10, 20), 1.0), DurationHistogram("n", Frontend.HTTP, (7, 0), 2.0)),
    in_flight=1,
    loop_late_s=0.1,
    units=(UnitsCount("t", 2.0), UnitsCount("u", 0.25)),
    computed=(ComputedCount("m", 1), ComputedCount("n", 4)),
    cached=(CacheStatusCount("m", CacheStatus.HIT, 2), CacheStatusCount("m", CacheStatus.MISS, 1)),
    holding=CacheSize(1, 10, 100),
    shared_cache=SharedCacheCounts(hits=1, dropped=2),
    shared_cache_away=1,
    shared_cache_answer_s=0.008,
    refused=(FleetRefusalCount("loading", 5), FleetRefusalCount("in_use", 2)),
    waited=WaitHistogram((10, 20), 7.0),
    retries=(RetryCount("resend", True, 2), RetryCount("resend", False, 5)),
    queries_of_death=QueryOfDeathCounts(refused=3),
    hedges=(HedgeCount("won", 3), HedgeCount("lost", 1)),
    hedged_units=2.0,
    copied=(CopiedCount("r", "n", Copied.BUSY, 2), CopiedCount("s", "n", Copied.BUSY, 4)),
    copied_took=(CopiedDurations("r", "n", Half.ORIGINAL, (5, 0), 1.0), CopiedDurations("r", "n", Half.COPY, (3, 4), 1.0)),
    budgets=(
        BudgetCount("latency", "r", "m", "within", 3),
        BudgetCount("latency", "r", "m", "late", 1),
        BudgetCount("cost", "r", "m", "within", 1),
    ),
    deliveries=(DeliveryCount("webhook", "pending", 3), DeliveryCount("webhook", "gone", 1)),
)


def test_the_total_adds_what_is_of_one_kind_and_keeps_the_rest_apart() -> None:
    assert total([A, B]) == RequestCounts(
        (OutcomeCount("m", Frontend.HTTP, Outcome.ANSWERED, 13), OutcomeCount("m", Frontend.GRPC, Outcome.ANSWERED, 1)),
        (DurationHistogram("m", Frontend.HTTP, (11, 22), 1.5), DurationHistogram("n", Frontend.HTTP, (7, 0), 2.0)),
        in_flight=5,
        loop_late_s=0.3,
        units=(UnitsCount("t", 3.5), UnitsCount("u", 0.25)),
        computed=(ComputedCount("m", 3), ComputedCount("n", 4)),
        cached=(CacheStatusCount("m", CacheStatus.HIT, 5), CacheStatusCount("m", CacheStatus.MISS, 1)),
        holding=CacheSize(3, 30, 300),
        shared_cache=SharedCacheCounts(hits=4, late=1, dropped=2),
        shared_cache_away=2,
        shared_cache_answer_s=0.008,
        refused=(FleetRefusalCount("in_use", 3), FleetRefusalCount("loading", 5)),
        waited=WaitHistogram((11, 22), 7.5),
        retries=(RetryCount("resend", True, 3), RetryCount("resend", False, 5)),
        queries_of_death=QueryOfDeathCounts(found=1, refused=10),
        hedges=(HedgeCount("won", 5), HedgeCount("lost", 1)),
        hedged_units=3.5,
        copied=(CopiedCount("r", "n", Copied.BUSY, 3), CopiedCount("s", "n", Copied.BUSY, 4)),
        copied_took=(CopiedDurations("r", "n", Half.COPY, (4, 6), 1.5), CopiedDurations("r", "n", Half.ORIGINAL, (5, 0), 1.0)),
        budgets=(
            BudgetCount("latency", "r", "m", "within", 5),
            BudgetCount("latency", "r", "m", "late", 1),
            BudgetCount("cost", "r", "m", "within", 1),
        ),
        deliveries=(DeliveryCount("webhook", "pending", 5), DeliveryCount("webhook", "gone", 1)),
    )


def test_the_total_of_one_is_itself_and_of_none_is_nothing() -> None:
    assert total([A]) == A
    assert total([]) == RequestCounts()


def test_what_answers_have_cost_is_added_by_model() -> None:
    part = RequestCounts(work=(WorkCounts("m", (1, 2), 3.0, (4,), 0.5, ()),))
    assert total([part, part]).work == (WorkCounts("m", (2, 4), 6.0, (8,), 1.0, ()),)


def test_a_worker_without_a_shared_cache_takes_nothing_from_the_others() -> None:
    without = RequestCounts()
    assert total([without, A, without]).shared_cache == A.shared_cache
    assert total([without, without]).shared_cache is None


def test_what_has_ended_has_nothing_in_flight_and_keeps_its_counts() -> None:
    assert A.retired() == RequestCounts(
        A.ended,
        A.took,
        in_flight=0,
        units=A.units,
        computed=A.computed,
        cached=A.cached,
        holding=CacheSize(evicted=200),
        shared_cache=A.shared_cache,
        refused=A.refused,
        waited=A.waited,
        retries=A.retries,
        queries_of_death=A.queries_of_death,
        hedges=A.hedges,
        hedged_units=A.hedged_units,
        copied=A.copied,
        copied_took=A.copied_took,
        budgets=A.budgets,
        deliveries=A.deliveries,
    )
