"""Writes metrics of requests in Prometheus' text format, a few milliseconds at a time.

A gateway with a thousand models has 40,000 lines of them, for which the client library takes 0.4 s, in which nobody else is served.
Labels are in the order of their names and counts end in .0, as the library has them. Source: Prometheus' exposition format 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from control_plane.core.steps import Steps
from control_plane.telemetry.request_counts import BUCKETS_S, RequestCounts, Took

_PER_STEP = 100
"""Histograms, of 19 lines each: about 2 ms."""

_BOUNDS = (*(str(bound) for bound in BUCKETS_S), "+Inf")


def request_metrics_steps(counts: RequestCounts) -> Steps[bytes]:
    """The lines of everything that is counted by model."""
    pieces = list[str]()
    for number, piece in enumerate(_pieces(counts)):
        pieces.append(piece)
        if number % _PER_STEP == _PER_STEP - 1:
            yield
    return "".join(pieces).encode(errors="replace")


def _pieces(counts: RequestCounts) -> Iterator[str]:
    yield _head("tidegate_requests_total", "counter", "Inference requests by how they ended.")
    for ended in counts.ended:
        labels = f'door="{ended.door.value}",model="{_escaped(ended.model)}",outcome="{ended.outcome.value}"'
        yield f"tidegate_requests_total{{{labels}}} {ended.count}.0\n"
    yield _head("tidegate_request_duration_seconds", "histogram", "Time from a whole request to its answer.")
    yield from map(_histogram, counts.took)
    help_text = "Answers of models whose answers are kept, by what the response cache did for them; of embeddings each text counts."
    yield _head("tidegate_cache_answers_total", "counter", help_text)
    for cached in counts.cached:
        labels = f'model="{_escaped(cached.model)}",status="{cached.status.value}"'
        yield f"tidegate_cache_answers_total{{{labels}}} {cached.count}.0\n"


def _head(name: str, kind: str, help_text: str) -> str:
    return f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n"


def _histogram(took: Took) -> str:
    name, door, model = "tidegate_request_duration_seconds", f'door="{took.door.value}"', f'model="{_escaped(took.model)}"'
    so_far, labels = list(accumulate(took.buckets)), f"{door},{model}"
    lines = [f'{name}_bucket{{{door},le="{bound}",{model}}} {count}.0\n' for bound, count in zip(_BOUNDS, so_far, strict=True)]
    return "".join((*lines, f"{name}_count{{{labels}}} {so_far[-1]}.0\n", f"{name}_sum{{{labels}}} {took.seconds}\n"))


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
