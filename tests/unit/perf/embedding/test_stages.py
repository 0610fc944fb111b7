"""The parts of a request's time add up to its latency."""

from __future__ import annotations

import pytest

from control_plane.profiling.stages import Counted
from perf.embedding.report import Stages
from perf.embedding.stages import Counts, stages


def counted() -> Counts:
    batching = {
        "tidegate_batching_queue_seconds_total": 0.002,
        "tidegate_batching_requests_total": 10.0,
        "tidegate_batching_compute_seconds_total": 0.006,
        "tidegate_batching_batches_total": 5.0,
    }
    return Counts(Counted(10, 25_000_000, {"queue": 0}), Counted(10, 0, {"queue": 3_000_000}), batching)


def test_stages_add_up_to_the_latency() -> None:
    measured = stages(through_ms=4.0, straight_ms=3.0, counted=counted())
    assert measured == Stages(
        gateway=1.0,
        client_and_http=pytest.approx(0.5),
        encoder_wait=pytest.approx(0.5),  # 0.3 in Triton, 0.2 in the backend
        encoder=pytest.approx(1.2),
        scheduling=pytest.approx(0.8),
    )
    assert measured.total == pytest.approx(4.0)
