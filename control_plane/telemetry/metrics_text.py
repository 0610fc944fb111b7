"""Renders the per-model request metrics in Prometheus' text format, in cooperative steps of a few
milliseconds.

A gateway with a thousand models has 40,000 lines of them. The client library takes 0.4 s for those, during
which no request would be served. As in the library's output, labels are sorted by name and counts end in
`.0`. Source: Prometheus' exposition format 0.0.4. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from control_plane.core.algorithms.steps import Steps
from control_plane.telemetry.request_counts import BUCKETS_S, RequestCounts
from control_plane.telemetry.work_counts import PACE_BUCKETS_S, UNIT_BUCKETS, WorkCounts

_PER_STEP = 100
"""Lines or histograms (of 19 lines each) per step: about 2 ms."""

_BOUNDS, _UNIT_BOUNDS, _PACE_BOUNDS = ((*map(str, bounds), "+Inf") for bounds in (BUCKETS_S, UNIT_BUCKETS, PACE_BUCKETS_S))
_DURATION, _BY_SIZE = "tidegate_request_duration_seconds", "tidegate_request_duration_by_size_seconds"
_UNITS, _PACE = "tidegate_request_compute_units", "tidegate_request_seconds_per_compute_unit"


def request_metrics_steps(counts: RequestCounts) -> Steps[bytes]:
    """Render all metrics that have a label for the model."""
    pieces = list[str]()
    for number, piece in enumerate(_pieces(counts)):
        pieces.append(piece)
        if number % _PER_STEP == _PER_STEP - 1:
            yield
    return "".join(pieces).encode(errors="replace")


def _pieces(counts: RequestCounts) -> Iterator[str]:
    yield _head("tidegate_requests_total", "counter", "Inference requests by model, frontend and outcome.")
    for ended in counts.ended:
        labels = f'frontend="{ended.frontend.value}",model="{_escaped(ended.model)}",outcome="{ended.outcome.value}"'
        yield f"tidegate_requests_total{{{labels}}} {ended.count}.0\n"
    yield _head(_DURATION, "histogram", "Seconds from a complete request to its response.")
    for took in counts.took:
        yield _histogram(_DURATION, f'frontend="{took.frontend.value}"', _model(took.model), _BOUNDS, took.buckets, took.seconds)
    yield from _work(counts.work)
    help_text = (
        "Responses of models whose responses are cached, by what the cache did: hit, miss, joined, bypass. Each embedded text counts."
    )
    yield _head("tidegate_cache_answers_total", "counter", help_text)
    for cached in counts.cached:
        labels = f'model="{_escaped(cached.model)}",status="{cached.status.value}"'
        yield f"tidegate_cache_answers_total{{{labels}}} {cached.count}.0\n"


def _head(name: str, kind: str, help_text: str) -> str:
    return f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n"


def _work(work: Sequence[WorkCounts]) -> Iterator[str]:
    yield _head(_UNITS, "histogram", "Compute units that computed answers were expected to take: what each request owes.")
    for each in work:
        yield _histogram(_UNITS, "", _model(each.model), _UNIT_BOUNDS, each.unit_buckets, each.units)
    help_text = "Seconds that computed answers took for each compute unit: 0.001 without any wait on an instance of its own."
    yield _head(_PACE, "histogram", help_text)
    for each in work:
        yield _histogram(_PACE, "", _model(each.model), _PACE_BOUNDS, each.pace_buckets, each.paces_s)
    help_text = (
        "Seconds from a complete request to its computed response by the size that was expected, in compute units at most; of models "
        "with answers of several sizes."
    )
    yield _head(_BY_SIZE, "histogram", help_text)
    for each in work:
        for size in each.sizes if len(each.sizes) > 1 else ():
            yield _histogram(_BY_SIZE, "", f'{_model(each.model)},size="{size.size}"', _BOUNDS, size.buckets, size.seconds)


def _histogram(name: str, before: str, after: str, bounds: Sequence[str], buckets: Iterable[int], sum_: float) -> str:
    """Render a histogram; `before` and `after` are its labels that sort before `le` and after it."""
    # Prometheus' buckets are cumulative: each counts all requests up to its bound.
    so_far, head = list(accumulate(buckets)), f"{before}," if before else ""
    lines = [f'{name}_bucket{{{head}le="{bound}",{after}}} {count}.0\n' for bound, count in zip(bounds, so_far, strict=True)]
    labels = head + after
    return "".join((*lines, f"{name}_count{{{labels}}} {so_far[-1]}.0\n", f"{name}_sum{{{labels}}} {sum_}\n"))


def _model(name: str) -> str:
    return f'model="{_escaped(name)}"'


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
