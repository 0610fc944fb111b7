"""NVIDIA's perf_analyzer, the real binary, runs against the gateway as against Triton."""

from __future__ import annotations

import pytest

from control_plane.triton.embedded.installation import ensure_installed
from control_plane.tuning.adapters.perf_analyzer import Load, PerfAnalyzer
from tests.e2e.tidegate import PROJECT, Tidegate


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer_measures_the_gateway(tidegate: Tidegate, protocol: str) -> None:
    cache = PROJECT / ".cache"
    analyzer = PerfAnalyzer(cache, ensure_installed(cache).libs)
    load = Load(
        model="echo",
        url=tidegate.address(protocol),
        protocol=protocol,
        concurrency=4,
        shapes=("INPUT0:16", "INPUT1:1"),
        request_count=200,
    )
    measured = analyzer.run(load)
    assert measured.throughput > 0
    assert 0 < measured.p50_ms <= measured.p99_ms
