"""The figures that targets and documents name: ratios within each round, then the median, and nothing of what was not measured."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from perf.batching import report as batching_report
from perf.cache_faults import report as cache_faults_report
from perf.embedding import report as embedding_report
from perf.eviction import report as eviction_report
from perf.fleet import report as fleet_report
from perf.floods import report as floods_report
from perf.gateway import report as gateway_report
from perf.generation import report as generation_report
from perf.hedging import report as hedging_report
from perf.jobs import report as jobs_report
from perf.measurement.report import Report, Result
from perf.prefetch import report as prefetch_report
from perf.repeats import report as repeats_report
from perf.simulate import report as simulate_report
from perf.soak import report as soak_report
from perf.streaming_gpu import report as streaming_gpu_report
from perf.waiting import report as waiting_report


def of(report: type[Report], *cases: tuple[tuple[Any, ...], list[dict[str, float]]], **options: Any) -> Report:
    """A report of runs of which only some figures matter; the others are 1."""
    runs = {
        report.case(*case): [report.run(**{each.name: 1 for each in fields(report.run)} | run) for run in rounds] for case, rounds in cases
    }
    more = {"stages_ms": {}, "distinct": 40, "budget_bytes": 200, "bus_bytes_per_s": 2**30}
    return report(Result(runs, more=more, options=options))


def soak(**figures: float) -> soak_report.Run:
    return soak_report.Run(**{each.name: 0 for each in fields(soak_report.Run)} | figures)  # type: ignore[arg-type]


GATEWAY, EMBEDDING, BATCHING = gateway_report.Report, embedding_report.Report, batching_report.Report
STRAIGHT = (("http", 1536, 1, "straight"), [{"p50_ms": 1.0}, {"p50_ms": 5.0}, {"p50_ms": 2.0}])
REPORTS = {
    "gateway": (
        of(
            GATEWAY,
            STRAIGHT,
            (("http", 1536, 1, "nginx"), [{"p50_ms": 1.1, "requests_per_s": 10}, {"p50_ms": 5.1}, {"p50_ms": 2.4}]),
            (
                ("http", 1536, 1, "tidegate"),
                [{"p50_ms": 1.3, "requests_per_s": 5, "cpu_us": 3}, {"p50_ms": 5.2, "cpu_us": 2}, {"p50_ms": 2.2}],
            ),
        ),
        {
            "http_1536_1_throughput_of_nginx": 1,
            "http_1536_1_added_of_nginx": 2.0,
            "http_1536_1_cpu_of_nginx": 2,
            "http_1536_1_cpu_us": 2,
        },
    ),
    "gateway: over its Unix sockets": (
        of(GATEWAY, STRAIGHT, (("http", 1536, 1, "tidegate-unix"), [{"p50_ms": 0.4}, {"p50_ms": 0.9}, {"p50_ms": 0.5}])),
        {"http_1536_1_socket_p50_ms": 0.5},
    ),
    "gateway: no ratio to a peer that seems to add nothing": (
        of(GATEWAY, STRAIGHT, (("http", 1536, 1, "nginx"), [{"p50_ms": 0.9}] * 3), (("http", 1536, 1, "tidegate"), [{}] * 3)),
        {"http_1536_1_throughput_of_nginx": 1, "http_1536_1_cpu_of_nginx": 1, "http_1536_1_cpu_us": 1},
    ),
    "floods": (
        of(
            floods_report.Report,
            (("alone",), [{}, {"http_p99_ms": 9}, {}]),
            (("http: no flood: one health check after the other",), [{"http_p99_ms": 1.2, "http_max_ms": 500}]),
            (("http: inferences",), [{"http_p99_ms": 3}]),
            (("grpc: GOAWAY",), [{"live_p99_ms": 2, "live_max_ms": 120}]),
        ),
        {"floods": 2, "floor": 1.2, "worst_moved": 3, "worst_beyond_floor": 2.5, "longest_ms": 120, "moved_too_far": 1, "too_long": 1},
    ),
    "soak": (
        soak_report.Report(
            Result(
                {
                    soak_report.Case(soak_report.BEFORE): [soak(requests=150_000, errors=1, expired=2, p99_ms=8)],
                    soak_report.Case(soak_report.SPIKE): [soak(requests=60_000, refused=50_000, p99_ms=600, in_time_per_s=900)],
                    soak_report.Case(soak_report.AFTER): [soak(requests=50_000, p99_ms=9)],
                },
                more={
                    "peak_per_s": 1000.0,
                    "minutes_p99_ms": [8.0, 20.0, 10.0],
                    "normal_after_s": 2.0,
                    "held": {"gateway": [{"mib": 100, "descriptors": 50, "threads": 4}, {"mib": 105, "descriptors": 50, "threads": 5}]},
                },
            )
        ),
        {
            "requests": 260_000,
            "errors_per_100000": 1.5,
            "spike_errors": 0,
            "last_minute_p99_times": 1.25,
            "spike_p99_ms": 600,
            "spike_goodput": 0.9,
            "normal_after_s": 2,
            "peak_per_s": 1000,
            "gateway_mib_times": 1.05,
            "gateway_descriptors_times": 1,
            "gateway_threads_times": 1.25,
        },
    ),
    "waiting": (
        of(
            waiting_report.Report,
            *((("http", what), [{}]) for what in (waiting_report.FAILED, waiting_report.THREADS)),
            *((("http", waiting_report.waiting_p99(asked)), [{}]) for asked in ("live", "ready")),
            (("http", waiting_report.upload_p99(waiting_report.NGINX)), [{"during": 4}]),
            (("http", waiting_report.upload_p99(waiting_report.GATEWAY)), [{"before": 2, "during": 12}]),
        ),
        {
            "http_failed": 1,
            "http_more_threads": 0,
            "http_live_p99_ms": 1,
            "http_ready_p99_ms": 1,
            "http_upload_p99_times": 6,
            "http_upload_floor": 4,
            "http_upload_beyond_floor": 1.5,
        },
    ),
    "jobs": (
        of(
            jobs_report.Report,
            ((jobs_report.ALONE,), [{"p99_ms": 10, "idle_cpus": 0.8}]),
            ((jobs_report.BESIDE,), [{"p99_ms": 12, "jobs_per_s": 36}]),
            ((jobs_report.JOBS,), [{"per_s": 100, "busy_cpus": 2}]),
        ),
        {"interactive_p99_times": 1.2, "of_the_idle_cpus": 0.9, "errors": 3},
    ),
    "embedding": (
        of(
            EMBEDDING,
            (("95/5", 0.0, 1, "flask"), [{"p50_ms": 20.0}]),
            (("95/5", 0.0, 1, "tidegate-http"), [{"p50_ms": 2.0}]),
            (("95/5", 0.3, 32, "tidegate-http"), [{"hit_ratio": 0.3}]),
            (("equal", 0.0, 0, "onnxruntime"), [{"requests_per_s": 2000.0}]),
            (("equal", 0.0, 32, "tidegate-http"), [{"requests_per_s": 1300.0}]),
        ),
        {"p50_flask_times": 10.0, "throughput_of_bare": 0.65, "repeats_hits_percent": 30.0},
    ),
    "batching": (
        of(
            BATCHING,
            (("int8", "95/5", "length-aware"), [{"sequences_per_s": 1400, "short_p99_ms": 30, "padding": 1.05}]),
            (("int8", "95/5", "first-come"), [{"sequences_per_s": 140, "short_p99_ms": 100}]),
            (("int8", "95/5", "one-by-one"), [{"sequences_per_s": 1000}]),
            (("fp32", "95/5", "length-aware"), [{}]),
        ),
        {"int8_times_first_come": 10, "int8_times_one_by_one": 1.4, "int8_padding": 1.05, "int8_short_p99_of_first_come": 0.3},
    ),
    "generation": (
        of(
            generation_report.Report,
            ((generation_report.SHARED, 8), [{"tokens_per_s": 30}]),
            ((generation_report.ALONE, 8), [{"tokens_per_s": 10}]),
            ((generation_report.SHARED, 1), [{"tokens_per_s": 9}, {"tokens_per_s": 11}, {"tokens_per_s": 12}]),
            ((generation_report.PLAIN, 1), [{"tokens_per_s": 10}] * 3),
            ((generation_report.SHARED, 0, generation_report.LONG_TOKENS), [{"read_ms": 1000}]),
            ((generation_report.SHARED, 1, generation_report.LONG_TOKENS), [{"pause_ms": 200, "read_ms": 1500}]),
        ),
        {"speedup_at_8": 3, "first_at_8": 1, "of_plain_at_1": 1.1, "pause_of_prompt": 0.2},
    ),
    "streaming-gpu": (
        of(
            streaming_gpu_report.Report,
            ((streaming_gpu_report.OURS, 100, 1), [{"written_per_s": 100, "held_mib": 200, "differing": 0}]),
            (
                (streaming_gpu_report.OURS, 16, 1),
                [
                    {"written_per_s": 10, "held_mib": 30, "copied_mib": 512, "step_ms": 1000, "differing": 0},
                    {"copied_mib": 512, "step_ms": 2000, "differing": 3},
                ],
            ),
            ((streaming_gpu_report.ACCELERATE, 16, 1), [{"written_per_s": 2, "differing": 5}]),
            ((streaming_gpu_report.OURS, 25, 16), [{"differing": 9}]),
        ),
        {"differing": 3, "held_part": 0.15, "bus_part": 0.375, "one_peer_times": 5, "one_whole_part": 0.1},
    ),
    "repeats": (
        of(
            repeats_report.Report,
            (("none",), [{"requests_per_s": 100}]),
            (("as shipped",), [{"requests_per_s": 250, "hit_ratio": 0.6}]),
            requests=100,
        ),
        {"as_shipped_hits_percent": 60, "possible_hits_percent": 60, "as_shipped_times_none": 2.5},
    ),
    "cache-faults": (
        of(cache_faults_report.Report, (("none",), [{"p99_ms": 10, "errors": 0}]), (("held still",), [{"p99_ms": 11, "errors": 2}])),
        {"held_still_p99_times": 1.1, "errors": 2},
    ),
    "eviction": (
        of(
            eviction_report.Report,
            *(
                ((trace, 10, policy), [{"saved_part": saved}])
                for trace, saved_parts in {"a": (0.8, 0.4, 0.6), "b": (0.9, 0.5, 0.6)}.items()
                for policy, saved in zip(("clairvoyant", "LRU", "Tidegate"), saved_parts, strict=True)
            ),
            sizes=[10],
        ),
        {"gap_closed_percent": 37.5, "worst_against_lru_points": 10.0, "best_other_of_each_trace_percent": 0.0},
    ),
    "simulate": (
        of(
            simulate_report.Report,
            (("8x5", "round robin"), [{"loads": 6000}]),
            (("8x5", "Tidegate"), [{"loads": 300, "part_within": 0.9995, "bound_loads": 150}] * 2 + [{"loads": 9, "bound_loads": 150}]),
        ),
        {"times_fewer_loads": 20, "within_percent": 99.95, "loads_of_bound": 2.0},
    ),
    "prefetch": (
        of(
            prefetch_report.Report,
            (("own times", "none"), [{"waited_s": 20.0, "loads": 300, "p99_ms": 60.0}]),
            (
                ("own times", "idle times and successions"),
                [{"waited_s": 15.0, "loads": 330, "p99_ms": 66.0, "prefetches": 40, "prefetches_used": 30}],
            ),
            (("own times", "clairvoyant"), [{"waited_s": 5.0, "loads": 300}]),
        ),
        {"saved_percent": 25.0, "used_percent": 75.0, "times_loads": 1.1, "times_p99": 1.1, "clairvoyant_saved_percent": 75.0},
    ),
    "hedging": (
        of(
            hedging_report.Report,
            (("stragglers", 0.2, "off"), [{"p999_ms": 200.0, "foretold_p999_ms": 200.0, "executions": 1.0, "compute_ms": 8.0}] * 2),
            (
                ("stragglers", 0.2, "on"),
                [
                    {"p999_ms": 10.0, "foretold_p999_ms": 11.0, "executions": 1.02, "foretold_executions": 1.015, "compute_ms": 6.0},
                    {"p999_ms": 20.0, "foretold_p999_ms": 20.0, "executions": 1.03, "foretold_executions": 1.020, "hedged": 0.02},
                ],
            ),
            (("stragglers", 0.2, "off again"), [{"p999_ms": 200.0}, {"p999_ms": 50.0}]),
        ),
        {
            "stragglers_20_p999_gain": 15.0,
            "stragglers_20_std_change": 0.0,
            "stragglers_20_mean_change": 0.0,
            "stragglers_20_more_executions": 0.025,
            "stragglers_20_more_compute": (6 / 8 + 1 / 8) / 2 - 1,
            "stragglers_20_more_cpu": 0.0,
            "stragglers_20_hedged": 0.51,
            "stragglers_20_p999_over_off": (0.05 + 0.2) / 2,
            "stragglers_20_p999_noise": 4.0,
            "stragglers_20_p999_beyond_noise": 0.125 / 4.0,
            "stragglers_20_p999_foretold": 1.05,
            "stragglers_20_extra_foretold": 0.035 / 0.05,
            "stragglers_20_p999_foretold_error": 0.05,
            "stragglers_20_extra_foretold_error": 0.3,
        },
    ),
    "fleet": (
        of(
            fleet_report.Report,
            (("tidegate",), [{"loads": 20, "predicted_loads": 25, "failures": 0, "held_bytes": 190}]),
            (("round-robin",), [{"loads": 60, "predicted_loads": 60, "failures": 2, "p99_ms": 2.0}]),
        ),
        {"failed_requests": 2, "most_held_percent": 95, "loads_off_percent": 25, "p99_off_percent": 50, "times_fewer_loads": 3},
    ),
}


@pytest.mark.parametrize(("report", "figures"), REPORTS.values(), ids=REPORTS)
def test_figures(report: Report, figures: dict[str, float]) -> None:
    assert report.figures() == pytest.approx(figures)


@pytest.mark.parametrize("report", [report for report, _ in REPORTS.values()], ids=REPORTS)
def test_targets_are_about_figures_that_are_there_or_were_not_measured(report: Report) -> None:
    assert len({target.figure for target in report.targets()}) == len(report.targets())
    assert [each["figure"] for each in report.document()["targets"]] == [
        target.figure for target in report.targets() if target.figure in report.figures()
    ]


def test_the_part_of_the_gap_that_a_policy_closes() -> None:
    report, _ = REPORTS["eviction"]
    assert isinstance(report, eviction_report.Report)
    assert [report.closed(trace, 10, "Tidegate") for trace in "ab"] == pytest.approx([0.5, 0.25])
    assert report.closed("a", 10, "LRU") == 0
