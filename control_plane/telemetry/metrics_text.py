"""Renders the per-model request metrics in Prometheus' text format, in cooperative steps of a few
milliseconds.

A gateway with a thousand models has 40,000 lines of them. The client library takes 0.4 s for those, during
which no request would be served. As in the library's output, labels are sorted by name and counts end in
`.0`. Source: Prometheus' exposition format 0.0.4. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from control_plane.core.algorithms.steps import Steps
from control_plane.telemetry.request_counts import BUCKETS_S, DurationHistogram, RequestCounts

_PER_STEP = 100
"""Lines or histograms (of 19 lines each) per step: about 2 ms."""

_BOUNDS = (*(str(bound) for bound in BUCKETS_S), "+Inf")


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
    yield _head("tidegate_request_duration_seconds", "histogram", "Seconds from a complete request to its response.")
    yield from map(_histogram, counts.took)
    help_text = (
        "Responses of models whose responses are cached, by what the cache did: hit, miss, joined, bypass. Each embedded text counts."
    )
    yield _head("tidegate_cache_answers_total", "counter", help_text)
    for cached in counts.cached:
        labels = f'model="{_escaped(cached.model)}",status="{cached.status.value}"'
        yield f"tidegate_cache_answers_total{{{labels}}} {cached.count}.0\n"


def _head(name: str, kind: str, help_text: str) -> str:
    return f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n"


def _histogram(took: DurationHistogram) -> str:
    name, frontend, model = "tidegate_request_duration_seconds", f'frontend="{took.frontend.value}"', f'model="{_escaped(took.model)}"'
    # Prometheus' buckets are cumulative: each counts all requests up to its bound.
    so_far, labels = list(accumulate(took.buckets)), f"{frontend},{model}"
    lines = [f'{name}_bucket{{{frontend},le="{bound}",{model}}} {count}.0\n' for bound, count in zip(_BOUNDS, so_far, strict=True)]
    return "".join((*lines, f"{name}_count{{{labels}}} {so_far[-1]}.0\n", f"{name}_sum{{{labels}}} {took.seconds}\n"))


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
