from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from control_plane.adapters.prometheus import OwnMetrics, RequestCounter
from control_plane.codec.steps import finish
from control_plane.domain.inference import CacheStatus, Door, Outcome
from control_plane.domain.request_counts import Cached, CacheHolding
from control_plane.domain.shared_cache_counts import SharedCacheCounts


class Bench:
    def __init__(self) -> None:
        self.in_flight, self.up, self.workers, self.behind_s = 0, False, 1, 0.0
        self.recorder = RequestCounter()
        self.cache: dict[str, Any] = {}
        self.metrics = OwnMetrics(
            version="1.2.3",
            counts=lambda: replace(self.recorder.counts(in_flight=self.in_flight), **self.cache),
            workers=lambda: self.workers,
            triton_is_up=lambda: self.up,
            state_behind_s=lambda: self.behind_s,
            cache_bytes=1000,
        )

    def record(self, model: str, outcome: Outcome, *, door: Door = Door.HTTP, duration_s: float = 0.01) -> None:
        self.recorder.record(model_name=model, door=door, outcome=outcome, duration_s=duration_s)

    def page(self) -> str:
        return finish(self.metrics.render()).decode()

    def samples(self, name: str) -> dict[tuple[str, ...], float]:
        """Values by labels, in the order of their names."""
        families = text_string_to_metric_families(self.page())
        found = [sample for family in families for sample in family.samples if sample.name == name]
        return {tuple(value for _, value in sorted(sample.labels.items())): sample.value for sample in found}


def test_counts_by_model_door_and_outcome() -> None:
    bench = Bench()
    bench.record("a", Outcome.ANSWERED)
    bench.record("a", Outcome.ANSWERED)
    bench.record("a", Outcome.ANSWERED, door=Door.GRPC)
    bench.record("a", Outcome.UPSTREAM_ERROR)
    assert bench.samples("tidegate_requests_total") == {
        ("http", "a", "answered"): 2.0,
        ("grpc", "a", "answered"): 1.0,
        ("http", "a", "upstream_error"): 1.0,
    }


def test_durations_are_a_histogram() -> None:
    bench = Bench()
    for duration_s in (0.0004, 0.003, 100.0):
        bench.record("a", Outcome.ANSWERED, duration_s=duration_s)
    buckets = {labels[1]: value for labels, value in bench.samples("tidegate_request_duration_seconds_bucket").items()}
    assert bench.samples("tidegate_request_duration_seconds_sum") == {("http", "a"): pytest.approx(100.0034)}
    assert bench.samples("tidegate_request_duration_seconds_count") == {("http", "a"): 3.0}
    assert (buckets["0.0005"], buckets["0.004"], buckets["30.0"], buckets["+Inf"]) == (1.0, 2.0, 2.0, 3.0)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.ANSWERED])
def test_names_that_no_answer_has_vouched_for_share_one_label(outcome: Outcome) -> None:
    """Triton answers some requests with an error before it looks at the name: an error must not open a new series."""
    bench = Bench()
    for number in range(1000):
        bench.record(f"random-{number}", outcome)
    assert bench.samples("tidegate_requests_total") == {("http", "", outcome.value): 1000.0}
    assert len(bench.samples("tidegate_request_duration_seconds_count")) == 1


def test_a_name_that_was_answered_keeps_its_label_for_errors() -> None:
    bench = Bench()
    bench.record("a", Outcome.ANSWERED)
    bench.record("a", Outcome.ABANDONED)
    assert bench.samples("tidegate_requests_total")["http", "a", "abandoned"] == 1.0


def test_names_are_escaped() -> None:
    bench = Bench()
    bench.record('a"} 1\nevil_total{x="', Outcome.ANSWERED)
    assert list(bench.samples("tidegate_requests_total")) == [("http", 'a"} 1\nevil_total{x="', "answered")]
    assert bench.samples("evil_total") == {}


def test_gauges_show_what_is_so_now() -> None:
    bench = Bench()
    assert bench.samples("tidegate_triton_up") == {(): 0.0}
    bench.in_flight, bench.up, bench.workers = 3, True, 2
    assert bench.samples("tidegate_requests_in_flight") == {(): 3.0}
    assert bench.samples("tidegate_triton_up") == {(): 1.0}
    assert bench.samples("tidegate_workers") == {(): 2.0}
    assert bench.samples("tidegate_build_info") == {("1.2.3",): 1.0}


def test_the_response_cache_is_shown_and_a_shared_one_where_there_is_one() -> None:
    bench = Bench()
    assert "tidegate_shared_cache" not in bench.page()
    bench.cache = {
        "cached": (Cached("a", CacheStatus.HIT, 5), Cached("a", CacheStatus.MISS, 2)),
        "holding": CacheHolding(3, 30, 300),
        "shared_cache": SharedCacheCounts(hits=1, misses=2, late=3, damaged=4, failed=5, away=6, slow=7, written=8, dropped=9),
        "shared_cache_away": 1,
        "shared_cache_answer_s": 0.002,
    }
    assert bench.samples("tidegate_cache_answers_total") == {("a", "hit"): 5.0, ("a", "miss"): 2.0}
    held = [bench.samples(f"tidegate_cache_{name}")[()] for name in ("entries", "bytes", "max_bytes", "evictions_total")]
    assert held == [3.0, 30.0, 1000.0, 300.0]
    lookups = {"hit": 1.0, "miss": 2.0, "late": 3.0, "damaged": 4.0, "failed": 5.0, "away": 6.0, "slow": 7.0}
    assert bench.samples("tidegate_shared_cache_lookups_total") == {(result,): count for result, count in lookups.items()}
    assert bench.samples("tidegate_shared_cache_writes_total") == {("written",): 8.0, ("dropped",): 9.0}
    assert bench.samples("tidegate_shared_cache_away") == {(): 1.0}
    assert bench.samples("tidegate_shared_cache_answer_seconds") == {(): 0.002}


def test_two_recorders_share_nothing() -> None:
    one, other = Bench(), Bench()
    one.record("a", Outcome.ANSWERED)
    assert other.samples("tidegate_requests_total") == {}
