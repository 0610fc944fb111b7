"""Published traces as they are read and scaled; made here in their formats."""

from __future__ import annotations

import gzip
from pathlib import Path
from random import Random
from statistics import median

import pytest

from perf.simulate.traces import (
    MODEL_BYTES,
    GenTd26,
    Scale,
    at_its_own_times,
    at_random_times,
    read_gentd26,
    read_load_times_s,
    unequal,
)

TRACE = GenTd26(["a", "b", "a", "c"], [0.0, 10.0, 10.0, 100.0])


def write(path: Path, text: str) -> Path:
    with gzip.open(path, "wt") as file:
        file.write(text)
    return path


def test_gentd26(tmp_path: Path) -> None:
    lines = ("gmt_create,predict_type,checkpoint_model_version_id", "2024-11-15 16:57:50,X,M0", "2024-11-15 16:58:20,X,M1")
    text = "\n".join([*lines, "2024-11-16 16:57:50,X,M0", ""])
    trace = read_gentd26(write(tmp_path / "trace.csv.gz", text))
    assert trace == GenTd26(["M0", "M1", "M0"], [0.0, 30.0, 86_400.0])


def test_load_times(tmp_path: Path) -> None:
    assert read_load_times_s(write(tmp_path / "times.csv.gz", "timestamp_anon,value\n1,2639.0\n2,500\n")) == [2.639, 0.5]


def test_another_file(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has no columns gmt_create, checkpoint_model_version_id"):
        read_gentd26(write(tmp_path / "other.csv.gz", "a,b\n1,2\n"))


def test_random_times_keep_the_order() -> None:
    many = GenTd26(TRACE.models * 1000, [])
    workload = at_random_times(many, Scale(rate=50.0), Random(1))
    assert [request.model for request in workload.requests] == many.models
    assert workload.requests[-1].at_s == pytest.approx(80, rel=0.06)
    assert {cost.load_s for cost in workload.models.values()} == {0.050}


def test_its_own_times_are_only_faster() -> None:
    requests = at_its_own_times(TRACE, Scale(rate=2.0)).requests
    assert [(request.at_s, request.model) for request in requests] == [(0.0, "a"), (0.2, "a"), (0.2, "b"), (2.0, "c")]


@pytest.mark.parametrize("times", [None, [1.0, 3.0, 100.0]])
def test_unequal_models(times: list[float] | None) -> None:
    costs = unequal([f"m{number}" for number in range(300)], 0.050, Random(1), times)
    sizes = [cost.resident_bytes / MODEL_BYTES for cost in costs.values()]
    assert 0.25 <= min(sizes) < 0.3
    assert 3.3 < max(sizes) <= 4
    assert median(cost.load_s for cost in costs.values()) == pytest.approx(0.050)
    if times is not None:
        assert {round(cost.load_s, 6) for cost in costs.values()} == {0.016667, 0.050, 1.666667}
