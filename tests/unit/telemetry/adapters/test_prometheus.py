from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from control_plane.core.algorithms.steps import finish
from control_plane.core.infer_call import CacheStatus, Frontend, Outcome
from control_plane.core.model import UNKNOWN_MODEL
from control_plane.telemetry.adapters.prometheus import OwnMetrics
from control_plane.telemetry.adapters.request_counter import RequestCounter
from control_plane.telemetry.request_counts import (
    BUCKETS_S,
    OTHER,
    BudgetCount,
    CacheSize,
    CacheStatusCount,
    Copied,
    CopiedCount,
    CopiedDurations,
    Half,
    ShedCount,
    UnitsCount,
)
from control_plane.telemetry.shared_cache_counts import SharedCacheCounts
from control_plane.telemetry.shed_reason import ShedReason

MOST = 100


class Bench:
    def __init__(self) -> None:
        self.in_flight, self.up, self.workers, self.behind_s = 0, False, 1, 0.0
        self.existing: set[str] = set()
        self.recorder = RequestCounter(max_models=MOST, existing=self.existing)
        self.cache: dict[str, Any] = {}
        self.metrics = OwnMetrics(
            version="1.2.3",
            counts=lambda: replace(self.recorder.counts(in_flight=self.in_flight), **self.cache),
            workers=lambda: self.workers,
            triton_is_up=lambda: self.up,
            state_behind_s=lambda: self.behind_s,
            cache_bytes=1000,
            max_models=MOST,
        )

    def record(self, model: str, outcome: Outcome, *, frontend: Frontend = Frontend.HTTP, duration_s: float = 0.01) -> None:
        self.recorder.record(model_name=model, frontend=frontend, outcome=outcome, duration_s=duration_s)

    def page(self) -> str:
        return finish(self.metrics.render()).decode()

    def samples(self, name: str) -> dict[tuple[str, ...], float]:
        """Return a metric's values by its labels, which are sorted by name."""
        families = text_string_to_metric_families(self.page())
        found = [sample for family in families for sample in family.samples if sample.name == name]
        return {tuple(value for _, value in sorted(sample.labels.items())): sample.value for sample in found}


def test_counts_by_model_frontend_and_outcome() -> None:
    bench = Bench()
    bench.record("a", Outcome.ANSWERED)
    bench.record("a", Outcome.ANSWERED)
    bench.record("a", Outcome.ANSWERED, frontend=Frontend.GRPC)
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


def test_copies_are_counted_by_route_and_model_and_their_durations_beside_the_originals() -> None:
    bench = Bench()
    buckets = tuple(int(number in (3, 5)) for number in range(len(BUCKETS_S) + 1))
    bench.cache["copied"] = (CopiedCount("r", "n", Copied.BUSY, 3), CopiedCount("r", "o", Copied.FAILED, 1))
    bench.cache["copied_took"] = (
        CopiedDurations("r", "n", Half.ORIGINAL, buckets, 0.02),
        CopiedDurations("r", "n", Half.COPY, buckets, 0.5),
    )
    assert bench.samples("tidegate_copied_requests_total") == {("n", "busy", "r"): 3.0, ("o", "failed", "r"): 1.0}
    name = "tidegate_copied_request_duration_seconds"
    assert bench.samples(f"{name}_sum") == {("original", "n", "r"): 0.02, ("copy", "n", "r"): 0.5}
    assert bench.samples(f"{name}_count") == {("original", "n", "r"): 2.0, ("copy", "n", "r"): 2.0}
    cumulative = bench.samples(f"{name}_bucket")
    assert [cumulative["copy", bound, "n", "r"] for bound in ("0.002", "0.004", "0.008", "0.015", "+Inf")] == [0.0, 1.0, 1.0, 2.0, 2.0]


def test_models_beyond_the_limit_are_counted_together() -> None:
    """The bound holds even if made-up names get this far: 4,000 made a page of 8 MB, whose scrape blocked
    requests for 5 s.
    """
    bench = Bench()
    bench.existing.update(f"model-{number}" for number in range(4000))
    for number in range(4000):
        bench.record(f"model-{number}", Outcome.ANSWERED)
        bench.record(f"model-{number}", Outcome.UPSTREAM_ERROR)
    totals = bench.samples("tidegate_requests_total")
    assert len(totals) == 2 * (MOST + 1)
    assert totals["http", OTHER, "answered"] == 4000 - MOST
    assert len(bench.samples("tidegate_request_duration_seconds_count")) == MOST + 1
    assert sum(bench.samples("tidegate_request_duration_seconds_count").values()) == 8000
    assert len(bench.page()) < 4096 * (MOST + 10)


def test_what_nobody_knows_has_a_label_beside_the_limit() -> None:
    bench = Bench()
    for number in range(MOST + 1):
        bench.record(f"model-{number}", Outcome.ANSWERED)
    bench.record(UNKNOWN_MODEL, Outcome.MODEL_NOT_FOUND)
    assert bench.samples("tidegate_requests_total")["http", UNKNOWN_MODEL, "model_not_found"] == 1.0


def test_a_name_that_is_too_long_has_no_label() -> None:
    bench = Bench()
    bench.record("x" * 256, Outcome.ANSWERED)
    assert list(bench.samples("tidegate_requests_total")) == [("http", OTHER, "answered")]


def test_models_that_are_gone_make_room_and_stay_in_the_sum() -> None:
    bench = Bench()
    bench.existing.add("model-1")
    for number in range(MOST):
        bench.record(f"model-{number}", Outcome.ANSWERED, duration_s=1.0)
    assert bench.samples("tidegate_requests_total") == {("http", "model-1", "answered"): 1.0, ("http", OTHER, "answered"): MOST - 1}
    assert bench.samples("tidegate_request_duration_seconds_sum")["http", OTHER] == MOST - 1
    bench.record("new", Outcome.ANSWERED)
    assert bench.samples("tidegate_requests_total")["http", "new", "answered"] == 1.0


def test_the_work_of_models_that_are_gone_stays_in_the_sum() -> None:
    bench = Bench()
    bench.existing.add("model-1")
    for number in range(MOST):
        bench.recorder.record_computed(f"model-{number}")
    found = {each.model: each.count for each in bench.recorder.counts(in_flight=0).computed}
    assert found == {"model-1": 1, OTHER: MOST - 1}


def test_tenants_and_models_of_the_cache_are_bounded_too() -> None:
    bench = Bench()
    bench.cache = {
        "cached": tuple(CacheStatusCount(f"model-{number:04d}", CacheStatus.HIT, 1) for number in range(MOST + 5)),
        "shed": tuple(ShedCount(f"tenant-{number:04d}", ShedReason.RATE, 2) for number in range(MOST + 5)),
        "units": tuple(UnitsCount(f"tenant-{number:04d}", 0.5) for number in range(MOST + 5)),
    }
    for name, other, expected in (
        ("tidegate_cache_answers_total", (OTHER, "hit"), 5.0),
        ("tidegate_requests_shed_total", ("rate", OTHER), 10.0),
        ("tidegate_compute_units_total", (OTHER,), 2.5),
    ):
        found = bench.samples(name)
        assert len(found) == MOST + 1
        assert found[other] == expected


def test_answers_to_budgets_are_told_by_route_and_model() -> None:
    bench = Bench()
    bench.cache = {"budgets": (BudgetCount("latency", "r", "large", "within", 3), BudgetCount("cost", "r", "small", "over", 1))}
    assert bench.samples("tidegate_latency_budget_requests_total") == {("large", "within", "r"): 3.0}
    assert bench.samples("tidegate_cost_budget_requests_total") == {("small", "over", "r"): 1.0}


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
    bench.cache = {"loop_late_s": 0.25}
    assert bench.samples("tidegate_event_loop_late_seconds") == {(): 0.25}
    assert bench.samples("tidegate_triton_up") == {(): 1.0}
    assert bench.samples("tidegate_workers") == {(): 2.0}
    assert bench.samples("tidegate_build_info") == {("1.2.3",): 1.0}


def test_the_response_cache_is_shown_and_a_shared_one_where_there_is_one() -> None:
    bench = Bench()
    assert "tidegate_shared_cache" not in bench.page()
    bench.cache = {
        "cached": (CacheStatusCount("a", CacheStatus.HIT, 5), CacheStatusCount("a", CacheStatus.MISS, 2)),
        "holding": CacheSize(3, 30, 300),
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
