"""How the time of a request is divided."""

from __future__ import annotations

from typing import Any

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.profiling.stages import Counted, stages


def statistics(requests: int, success_ms: float, **phases_ms: float) -> dict[str, Any]:
    """Triton's statistics of a model with two versions, of which only one has been asked."""

    def of(count: int, share: float) -> dict[str, Any]:
        phases = {name: {"count": count, "ns": round(ms * share * 1e6)} for name, ms in phases_ms.items()}
        return {"inference_stats": {"success": {"count": count, "ns": round(success_ms * share * 1e6)}, **phases}}

    return {"model_stats": [of(requests, 1.0), of(0, 0.0)]}


def counted(requests: int, success_ms: float, queue: float, inputs: float, computing: float, outputs: float) -> Counted:
    return Counted.of(statistics(requests, success_ms, queue=queue, compute_input=inputs, compute_infer=computing, compute_output=outputs))


def test_of_a_plain_model() -> None:
    model = counted(10, 50.0, 10.0, 2.0, 30.0, 3.0).since(counted(0, 0.0, 0.0, 0.0, 0.0, 0.0))
    found = stages(total_ms=8.0, network_ms=0.5, model=model, steps=[])
    assert [(each.name, pytest.approx(each.ms)) for each in found] == [
        ("network and HTTP", 0.5),
        ("gateway, and its way to Triton", 2.5),
        ("queue", 1.0),
        ("inputs", 0.2),
        ("computing", 3.0),
        ("outputs", 0.3),
        ("Triton's scheduling", 0.5),
    ]
    assert sum(each.ms for each in found) == pytest.approx(8.0)


def test_of_an_ensemble_by_its_steps() -> None:
    before = counted(5, 7.0, 1.0, 1.0, 1.0, 1.0)
    after = counted(15, 57.0, 11.0, 1.0, 21.0, 1.0)
    steps = [("first", after.since(before)), ("second", counted(10, 0.0, 0.0, 0.0, 10.0, 0.0))]
    found = {each.name: each.ms for each in stages(total_ms=6.0, network_ms=0.5, model=after.since(before), steps=steps)}
    assert found["first: queue"] == pytest.approx(1.0)
    assert found["first: computing"] == pytest.approx(2.0)
    assert found["second: computing"] == pytest.approx(1.0)
    assert found["Triton's scheduling"] == pytest.approx(1.0)
    assert found["gateway, and its way to Triton"] == pytest.approx(0.5)


def test_no_part_is_below_nothing() -> None:
    slow_elsewhere = counted(10, 100.0, 0.0, 0.0, 120.0, 0.0)
    assert all(each.ms >= 0 for each in stages(total_ms=5.0, network_ms=1.0, model=slow_elsewhere, steps=[]))
    nothing = counted(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert [each.ms for each in stages(total_ms=5.0, network_ms=1.0, model=nothing, steps=[])][:2] == [1.0, 4.0]


@pytest.mark.parametrize("answer", [{}, {"model_stats": [{}]}, {"model_stats": [{"inference_stats": {"success": {}}}]}, []])
def test_statistics_that_are_none_are_told(answer: object) -> None:
    with pytest.raises(InvalidRequest, match="no statistics"):
        Counted.of(answer)
