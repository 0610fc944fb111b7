from __future__ import annotations

from control_plane.core.infer_call import CacheStatus, Door, Outcome
from control_plane.telemetry.request_counts import Cached, CacheHolding, Ended, Refused, RequestCounts, Took, Waited, total
from control_plane.telemetry.shared_cache_counts import SharedCacheCounts

A = RequestCounts(
    (Ended("m", Door.HTTP, Outcome.ANSWERED, 3),),
    (Took("m", Door.HTTP, (1, 2), 0.5),),
    in_flight=4,
    cached=(Cached("m", CacheStatus.HIT, 3),),
    holding=CacheHolding(2, 20, 200),
    shared_cache=SharedCacheCounts(hits=3, late=1),
    shared_cache_away=1,
    shared_cache_answer_s=0.002,
    refused=(Refused("in_use", 1),),
    waited=Waited((1, 2), 0.5),
)
B = RequestCounts(
    (Ended("m", Door.HTTP, Outcome.ANSWERED, 10), Ended("m", Door.GRPC, Outcome.ANSWERED, 1)),
    (Took("m", Door.HTTP, (10, 20), 1.0), Took("n", Door.HTTP, (7, 0), 2.0)),
    in_flight=1,
    cached=(Cached("m", CacheStatus.HIT, 2), Cached("m", CacheStatus.MISS, 1)),
    holding=CacheHolding(1, 10, 100),
    shared_cache=SharedCacheCounts(hits=1, dropped=2),
    shared_cache_away=1,
    shared_cache_answer_s=0.008,
    refused=(Refused("loading", 5), Refused("in_use", 2)),
    waited=Waited((10, 20), 7.0),
)


def test_the_total_adds_what_is_of_one_kind_and_keeps_the_rest_apart() -> None:
    assert total([A, B]) == RequestCounts(
        (Ended("m", Door.HTTP, Outcome.ANSWERED, 13), Ended("m", Door.GRPC, Outcome.ANSWERED, 1)),
        (Took("m", Door.HTTP, (11, 22), 1.5), Took("n", Door.HTTP, (7, 0), 2.0)),
        in_flight=5,
        cached=(Cached("m", CacheStatus.HIT, 5), Cached("m", CacheStatus.MISS, 1)),
        holding=CacheHolding(3, 30, 300),
        shared_cache=SharedCacheCounts(hits=4, late=1, dropped=2),
        shared_cache_away=2,
        shared_cache_answer_s=0.008,
        refused=(Refused("in_use", 3), Refused("loading", 5)),
        waited=Waited((11, 22), 7.5),
    )


def test_the_total_of_one_is_itself_and_of_none_is_nothing() -> None:
    assert total([A]) == A
    assert total([]) == RequestCounts()


def test_a_worker_without_a_shared_cache_takes_nothing_from_the_others() -> None:
    without = RequestCounts()
    assert total([without, A, without]).shared_cache == A.shared_cache
    assert total([without, without]).shared_cache is None


def test_what_has_ended_has_nothing_in_flight_and_keeps_its_counts() -> None:
    assert A.retired() == RequestCounts(
        A.ended,
        A.took,
        in_flight=0,
        cached=A.cached,
        holding=CacheHolding(evicted=200),
        shared_cache=A.shared_cache,
        refused=A.refused,
        waited=A.waited,
    )
