"""What computed answers cost and how long they took for it: counted, summed over processes, bounded and written."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from control_plane.core.algorithms.steps import finish
from control_plane.telemetry.adapters.metric_labels import BoundedCounts
from control_plane.telemetry.adapters.request_counter import RequestCounter
from control_plane.telemetry.metrics_text import request_metrics_steps
from control_plane.telemetry.request_counts import OTHER, RequestCounts, total
from control_plane.telemetry.work_counts import PACE_BUCKETS_S, SIZE_OF_BUCKET, SIZES, UNIT_BUCKETS
from control_plane.workers.codec import LENGTH_BYTES, decode, encode
from control_plane.workers.messages.from_workers import CountsReported

UNITS, PACE, BY_SIZE = (
    "tidegate_request_compute_units",
    "tidegate_request_seconds_per_compute_unit",
    "tidegate_request_duration_by_size_seconds",
)


def counter(*existing: str, most: int = 100) -> RequestCounter:
    return RequestCounter(max_models=most, existing=existing)


def counted(*answers: tuple[str, float, float]) -> RequestCounts:
    own = counter()
    for model, units, duration_s in answers:
        own.record_work(model, units, duration_s)
    return own.counts(in_flight=0)


def samples(counts: RequestCounts) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(finish(request_metrics_steps(counts)).decode())
    return {
        (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("units", "size"),
    [(1e-9, "1"), (1.0, "1"), (1.1, "8"), (8.0, "8"), (9.0, "64"), (65.0, "512"), (512.0, "512"), (513.0, "more"), (1e12, "more")],
)
def test_the_class_of_a_size(units: float, size: str) -> None:
    (work,) = counted(("m", units, 0.1)).work
    assert [each.size for each in work.sizes] == [size]


def test_classes_begin_where_buckets_do() -> None:
    assert len(SIZE_OF_BUCKET) == len(UNIT_BUCKETS) + 1
    assert {float(size) for size in SIZES[:-1]} <= set(UNIT_BUCKETS)
    assert list(SIZE_OF_BUCKET) == sorted(SIZE_OF_BUCKET)
    assert 0.001 in PACE_BUCKETS_S


def test_what_prometheus_reads_of_a_model_with_small_and_large_requests() -> None:
    found = samples(counted(("m", 0.5, 0.001), ("m", 0.5, 0.002), ("m", 100.0, 0.2)))
    assert found[f"{UNITS}_bucket", "le=0.5", "model=m"] == 2
    assert found[f"{UNITS}_count", "model=m"] == 3
    assert found[f"{UNITS}_sum", "model=m"] == 101.0
    assert found[f"{PACE}_bucket", "le=0.002", "model=m"] == 2
    assert found[f"{PACE}_sum", "model=m"] == pytest.approx(0.002 + 0.004 + 0.002)
    assert found[f"{BY_SIZE}_count", "model=m", "size=1"] == 2
    assert found[f"{BY_SIZE}_bucket", "le=0.25", "model=m", "size=512"] == 1
    assert found[f"{BY_SIZE}_sum", "model=m", "size=512"] == 0.2


def test_a_model_with_answers_of_one_size_has_no_series_by_size() -> None:
    assert not [key for key in samples(counted(("m", 1.0, 0.1), ("m", 0.5, 0.1))) if key[0].startswith(BY_SIZE)]


def test_processes_are_summed_and_travel_between_them() -> None:
    one, other = counted(("a", 1.0, 0.1), ("b", 2.0, 0.1)), counted(("a", 1.0, 0.3), ("a", 100.0, 0.5))
    travelled = decode(encode(CountsReported(one))[LENGTH_BYTES:])
    assert isinstance(travelled, CountsReported)
    assert travelled.counts == one
    together = {each.model: each for each in total([travelled.counts, other]).work}
    assert together["a"] == counted(("a", 1.0, 0.1), ("a", 1.0, 0.3), ("a", 100.0, 0.5)).work[0]
    assert together["b"].units == 2.0


def test_models_beyond_the_bound_are_counted_together() -> None:
    own = counter("a", "b", most=2)
    for model in ("a", "b", "c", "d"):
        own.record_work(model, 1.0, 0.1)
    assert {each.model: each.units for each in own.counts(in_flight=0).work} == {"a": 1.0, "b": 1.0, OTHER: 2.0}
    bounded = BoundedCounts(1).of(counted(("a", 1.0, 0.1), ("b", 2.0, 0.1), ("c", 3.0, 0.1)))
    assert {each.model: each.units for each in bounded.work} == {"a": 1.0, OTHER: 5.0}


def test_models_that_are_gone_make_room_and_none_of_their_work_is_lost() -> None:
    own = counter("b", "c", most=2)
    for model in ("a", "b"):
        own.record_work(model, 3.0, 0.1)
    assert sum(each.units for each in own.counts(in_flight=0).work) == 6.0
    own.record_work("c", 1.0, 0.1)
    assert {each.model: each.units for each in own.counts(in_flight=0).work} == {OTHER: 3.0, "b": 3.0, "c": 1.0}
