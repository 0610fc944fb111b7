"""How the time of a request is divided."""

from __future__ import annotations

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.profiling.stages import Asked, Counted, Stage, at_server, measured, stages, stages_of_first
from tests.unit.profiling.stages_bench import statistics


def counted(requests: int, success_ms: float, queue: float, inputs: float, computing: float, outputs: float) -> Counted:
    return Counted.of(statistics(requests, success_ms, queue=queue, compute_input=inputs, compute_infer=computing, compute_output=outputs))


def asked(total_ms: float, gateway_ms: float, wait_ms: float = 0.0, server_ms: float | None = None) -> Asked:
    told = {"total": gateway_ms, "wait": wait_ms}
    return Asked(total_ms, told if server_ms is None else told | {"server": server_ms})


NOTHING = counted(0, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_of_a_plain_model() -> None:
    model = counted(10, 50.0, 10.0, 2.0, 30.0, 3.0).since(NOTHING)
    found = stages([asked(8.0, 7.5, 1.0, 5.25)], model=model, steps=[])
    assert [(each.name, pytest.approx(each.ms)) for each in found] == [
        ("network and HTTP", 0.5),
        ("gateway: waiting", 1.0),
        ("gateway: its own work", 1.25),
        ("way to Triton", 0.25),
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
    found = {each.name: each.ms for each in stages([asked(6.0, 5.5, 0.0, 5.25)], model=after.since(before), steps=steps)}
    assert found["first: queue"] == pytest.approx(1.0)
    assert found["first: computing"] == pytest.approx(2.0)
    assert found["second: computing"] == pytest.approx(1.0)
    assert found["Triton's scheduling"] == pytest.approx(1.0)
    assert found["way to Triton"] == pytest.approx(0.25)


def test_percentiles_are_of_what_is_known_of_each_request_and_of_nothing_else() -> None:
    requests = [asked(10.0 + number, 9.0 + number, float(number), 5.0) for number in range(1, 101)]
    found = {each.name: (each.p50_ms, each.p99_ms) for each in stages(requests, model=counted(100, 500.0, 100.0, 0.0, 0.0, 0.0), steps=[])}
    assert found["gateway: waiting"] == (50.0, 99.0)
    assert found["network and HTTP"] == (1.0, 1.0)
    assert [found[name] for name in ("way to Triton", "queue", "computing", "Triton's scheduling")] == [(None, None)] * 4
    server = at_server(requests)
    assert server is not None
    assert (server.ms, server.p50_ms, server.p99_ms) == (5.0, 5.0, 5.0)


@pytest.mark.parametrize(
    ("values", "p50", "p99"),
    [([3.0], 3.0, 3.0), ([2.0, 1.0], 1.0, 2.0), ([float(each) for each in range(1000)], 499.0, 989.0)],
)
def test_percentiles_are_by_the_nearest_rank(values: list[float], p50: float, p99: float) -> None:
    assert measured("x", values) == Stage("x", sum(values) / len(values), p50, p99)


def test_a_gateway_that_tells_no_times_is_one_part_with_the_network() -> None:
    requests = [asked(8.0, 7.0, 0.0, 5.0), Asked(10.0, {})]
    found = stages(requests, model=counted(2, 10.0, 2.0, 0.0, 8.0, 0.0), steps=[], protocol="gRPC")
    assert [(each.name, each.ms) for each in found][:2] == [("network, gRPC and gateway", 4.0), ("queue", 1.0)]
    assert at_server(requests[1:]) is None


def test_of_a_stream_to_its_first_response() -> None:
    """Triton counts the handing over of a request, and not what the model does with it."""
    model = counted(10, 60.0, 10.0, 2.0, 45.0, 3.0)
    told = stages_of_first([asked(8.0, 7.5, 1.0, 5.25)], model=model, steps=[])
    assert [(each.name, pytest.approx(each.ms)) for each in told] == [
        ("network and HTTP", 0.5),
        ("gateway: waiting", 1.0),
        ("gateway: its own work", 1.25),
        ("queue", 1.0),
        ("way to Triton, and the model", 4.25),
    ]
    untold = stages_of_first([Asked(8.0, {})], model=model, steps=[("a", model)], protocol="gRPC")
    assert untold == [Stage("network, gRPC, gateway, and the model", 7.0), Stage("a: queue", 1.0)]


def test_no_part_is_below_nothing() -> None:
    for requests in ([asked(5.0, 5.5, 0.0, 6.0)], [Asked(5.0, {})]):
        for divided in (stages, stages_of_first):
            assert all(each.ms >= 0 for each in divided(requests, model=counted(10, 100.0, 90.0, 0.0, 120.0, 0.0), steps=[]))


def test_what_the_cache_had_was_at_no_server() -> None:
    found = {each.name: each.ms for each in stages([asked(1.0, 0.75)], model=NOTHING, steps=[])}
    assert (found["gateway: its own work"], found["way to Triton"]) == (0.75, 0.0)


@pytest.mark.parametrize("answer", [{}, {"model_stats": [{}]}, {"model_stats": [{"inference_stats": {"success": {}}}]}, []])
def test_statistics_that_are_none_are_told(answer: object) -> None:
    with pytest.raises(InvalidRequest, match="no statistics"):
        Counted.of(answer)
