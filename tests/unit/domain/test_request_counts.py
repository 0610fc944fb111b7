from __future__ import annotations

from control_plane.domain.inference import Door, Outcome
from control_plane.domain.request_counts import Ended, RequestCounts, Took, total

A = RequestCounts((Ended("m", Door.HTTP, Outcome.ANSWERED, 3),), (Took("m", Door.HTTP, (1, 2), 0.5),), in_flight=4)
B = RequestCounts(
    (Ended("m", Door.HTTP, Outcome.ANSWERED, 10), Ended("m", Door.GRPC, Outcome.ANSWERED, 1)),
    (Took("m", Door.HTTP, (10, 20), 1.0), Took("n", Door.HTTP, (7, 0), 2.0)),
    in_flight=1,
)


def test_the_total_adds_what_is_of_one_kind_and_keeps_the_rest_apart() -> None:
    assert total([A, B]) == RequestCounts(
        (Ended("m", Door.HTTP, Outcome.ANSWERED, 13), Ended("m", Door.GRPC, Outcome.ANSWERED, 1)),
        (Took("m", Door.HTTP, (11, 22), 1.5), Took("n", Door.HTTP, (7, 0), 2.0)),
        in_flight=5,
    )


def test_the_total_of_one_is_itself_and_of_none_is_nothing() -> None:
    assert total([A]) == A
    assert total([]) == RequestCounts()


def test_what_has_ended_has_nothing_in_flight_and_keeps_its_counts() -> None:
    assert A.retired() == RequestCounts(A.ended, A.took, in_flight=0)
