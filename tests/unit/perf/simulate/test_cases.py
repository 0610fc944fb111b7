"""The cases are what they say, and the same each time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from control_plane.fleet.simulation.workload import Workload
from perf.simulate.cases import CASES, SERVICE_S, Files, make
from perf.simulate.traces import MODEL_BYTES, GenTd26

TRACE = Files(GenTd26([f"m{number % 7}" for number in range(2000)], [float(number // 3) for number in range(2000)]), [1.0, 2.0])
SMALL = [name for name, case in CASES.items() if not case.is_large]


def busiest(workload: Workload, servers: int, window_s: float) -> float:
    """Part of what so many servers can do."""
    starts = range(int(workload.requests[-1].at_s / window_s) + 1)
    counts = dict.fromkeys(starts, 0)
    for request in workload.requests:
        counts[int(request.at_s / window_s)] += 1
    return max(counts.values()) * SERVICE_S / window_s / servers


@pytest.mark.parametrize("files", [Files(), TRACE], ids=["own", "given"])
@pytest.mark.parametrize("name", SMALL)
def test_each(name: str, files: Files) -> None:
    setting = make(name, 0, files)
    requests = setting.workload.requests
    assert all(before.at_s <= after.at_s for before, after in pairwise(requests))
    assert {request.model for request in requests} == set(setting.workload.models)
    assert setting.memory_bytes >= 4 * 5 * MODEL_BYTES
    assert make(name, 0, files) == setting
    assert make(name, 1, files) != setting or (name == "own times" and files is TRACE)


@pytest.mark.parametrize("name", ["8x5", "4x5", "8x10"])
def test_as_busy_as_wanted(name: str) -> None:
    setting = make(name, 0, Files(busy=0.3))
    could_s = setting.workload.requests[-1].at_s * setting.shape.servers
    assert len(setting.workload.requests) * SERVICE_S / could_s == pytest.approx(0.3, rel=0.05)
    assert f"{setting.shape.servers}x{setting.shape.budget_bytes // MODEL_BYTES}" == name


def test_a_spike_is_ten_times_the_usual() -> None:
    assert busiest(make("spike", 0, Files()).workload, 8, 1.0) == pytest.approx(0.8, rel=0.15)
    assert busiest(make("8x5", 0, Files()).workload, 8, 1.0) < 0.6


def test_a_flash_crowd_is_for_one_new_model() -> None:
    requests = make("flash crowd", 0, Files()).workload.requests
    crowd = [request.at_s for request in requests if request.model == "crowd"]
    assert len(crowd) / (crowd[-1] - crowd[0]) == pytest.approx(200, rel=0.1)


def test_ten_servers_at_a_time_at_most() -> None:
    setting = make("come and go", 0, Files())
    assert len(setting.shape.changes) == 8
    assert setting.most_servers == 10
