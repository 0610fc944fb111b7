"""The lines that are counted by model, as Prometheus' own client library reads them; what they say is in adapters/test_prometheus.py."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from control_plane.core.algorithms.steps import finish
from control_plane.core.infer_call import Frontend, Outcome
from control_plane.telemetry.metrics_text import request_metrics_steps
from control_plane.telemetry.request_counts import BUCKETS_S, DurationHistogram, OutcomeCount, RequestCounts


def counted(models: int) -> RequestCounts:
    names = [f"model-{number}" for number in range(models)]
    took = tuple(DurationHistogram(name, Frontend.GRPC, tuple(range(len(BUCKETS_S) + 1)), 1.5) for name in names)
    return RequestCounts(ended=tuple(OutcomeCount(name, Frontend.GRPC, Outcome.ANSWERED, 3) for name in names), took=took)


def test_many_models_are_written_with_pauses() -> None:
    steps = request_metrics_steps(counted(1000))
    assert sum(1 for _ in steps) >= 20


def test_it_is_what_prometheus_reads() -> None:
    families = {each.name: each for each in text_string_to_metric_families(finish(request_metrics_steps(counted(2))).decode())}
    assert {name: each.type for name, each in families.items()} == {
        "tidegate_requests": "counter",
        "tidegate_request_duration_seconds": "histogram",
        "tidegate_request_compute_units": "histogram",
        "tidegate_request_seconds_per_compute_unit": "histogram",
        "tidegate_request_duration_by_size_seconds": "histogram",
        "tidegate_cache_answers": "counter",
    }
    buckets = [each for each in families["tidegate_request_duration_seconds"].samples if each.name.endswith("_bucket")]
    assert [each.value for each in buckets[: len(BUCKETS_S) + 1]] == [n * (n + 1) / 2 for n in range(len(BUCKETS_S) + 1)]


def test_lines_are_those_of_the_client_library() -> None:
    lines = finish(request_metrics_steps(counted(1))).decode().splitlines()
    assert 'tidegate_requests_total{frontend="grpc",model="model-0",outcome="answered"} 3.0' in lines
    assert 'tidegate_request_duration_seconds_bucket{frontend="grpc",le="0.001",model="model-0"} 1.0' in lines
    assert 'tidegate_request_duration_seconds_sum{frontend="grpc",model="model-0"} 1.5' in lines


def test_half_of_a_surrogate_pair_spoils_nothing() -> None:
    page = finish(request_metrics_steps(RequestCounts(ended=(OutcomeCount("a\ud800", Frontend.HTTP, Outcome.ANSWERED, 1),)))).decode()
    assert 'model="a?"' in page
