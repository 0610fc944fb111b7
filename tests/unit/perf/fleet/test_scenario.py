from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from control_plane.fleet.simulation.workload import Request
from perf.fleet.__main__ import Bench, Happened, judge, service_s_of
from perf.fleet.alone import AllAlone, Alone
from perf.fleet.clients import Answers
from perf.fleet.report import ROUND_ROBIN, STICKY_HASH, TIDEGATE, Memory
from perf.fleet.servers import Logged

ALONE = AllAlone({"a": Alone(60, 1.0, 0.5, 0.010), "b": Alone(60, 3.0, 0.7, 0.020)}, kept_bytes=10)
BENCH = Bench(
    Path(), ALONE, {"a": 62, "b": 62}, budget_bytes=130, servers=2,
    requests=[Request(20.0 * at, model, 0.0) for at, model in enumerate("aabb")],
)  # fmt: skip
HAPPENED = Happened(
    Answers([0.1, 0.2, 0.3, 2.0], ["b: 503 no room"], {"a": [0.1, 0.1, 0.2, 5.0]}),
    seconds=62.0,
    memory=Memory([0.0, 0.5], {7: [20, 150], 8: [20, 90]}),
    logged=Logged([2.0, 4.0], unloads=1),
    unload_s=[],
)


class TestService:
    def test_it_is_what_requests_take_that_wait_for_nobody(self) -> None:
        assert service_s_of(BENCH, [HAPPENED, HAPPENED])["a"] == pytest.approx(0.1)

    @pytest.mark.parametrize("runs", [[], [HAPPENED]], ids=["no runs", "no answers of that model"])
    def test_where_nobody_asked_it_is_what_it_took_alone(self, runs: list[Happened]) -> None:
        assert service_s_of(BENCH, runs)["b"] == 0.020


class TestJudging:
    def test_what_happened(self) -> None:
        run = judge(TIDEGATE, BENCH, HAPPENED, {"a": 0.01, "b": 0.02})
        assert (run.loads, run.unloads, run.failures, run.seconds) == (2, 1, 1, 62.0)
        assert (run.p50_ms, run.p99_ms, run.mean_ms) == pytest.approx((200, 2000, 650))
        assert run.load_ms == pytest.approx(3000)
        assert run.held_bytes == 150 - 20 - 10, "models only: neither an empty Triton nor what it keeps for itself"

    def test_unloads_are_timed_by_whoever_orders_them_or_were_alone(self) -> None:
        service_s = {"a": 0.01, "b": 0.02}
        assert judge(TIDEGATE, BENCH, HAPPENED, service_s).unload_ms == pytest.approx(600)
        assert judge(STICKY_HASH, BENCH, replace(HAPPENED, unload_s=[1.0, 2.0]), service_s).unload_ms == pytest.approx(1500)

    @pytest.mark.parametrize(("way", "loads"), [(ROUND_ROBIN, 4), (STICKY_HASH, 2), (TIDEGATE, 2)])
    def test_the_same_is_simulated_for_each_way(self, way: str, loads: int) -> None:
        run = judge(way, BENCH, HAPPENED, {"a": 0.01, "b": 0.02})
        assert (run.predicted_loads, run.predicted_refused) == (loads, 0)
        assert run.predicted_p99_ms == pytest.approx(3000 * 3.0 / 2.0 + 20)
