from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest

from control_plane.core.algorithms.steps import finish
from control_plane.protocols.kserve.merged_statistics import PER_STEP, Statistics, merged_statistics_steps, no_statistics

ONE: dict[str, Any] = {
    "name": "m",
    "version": "1",
    "last_inference": 1_795_314_127_479,
    "inference_count": 3,
    "execution_count": 2,
    "inference_stats": {"success": {"count": 3, "ns": 300}, "fail": {"count": 0, "ns": 0}},
    "response_stats": {"0": {"success": {"count": 2, "ns": 20}}},
    "batch_stats": [
        {"batch_size": 1, "compute_infer": {"count": 1, "ns": 100}},
        {"batch_size": 2, "compute_infer": {"count": 1, "ns": 200}},
    ],
    "memory_usage": [{"type": "CPU", "id": 0, "byte_size": 1000}],
}
OTHER: dict[str, Any] = {
    "name": "m",
    "version": "1",
    "last_inference": 1_795_314_999_999,
    "inference_count": 10,
    "execution_count": 5,
    "inference_stats": {"success": {"count": 10, "ns": 1000}, "cache_hit": {"count": 4, "ns": 4}},
    "response_stats": {"0": {"success": {"count": 1, "ns": 1}}, "1": {"success": {"count": 7, "ns": 7}}},
    "batch_stats": [{"batch_size": 2, "compute_infer": {"count": 5, "ns": 1000}}],
    "memory_usage": [{"type": "CPU", "id": 0, "byte_size": 24}, {"type": "GPU", "id": 1, "byte_size": 5}],
}
SUM: dict[str, Any] = {
    "name": "m",
    "version": "1",
    "last_inference": 1_795_314_999_999,
    "inference_count": 13,
    "execution_count": 7,
    "inference_stats": {"success": {"count": 13, "ns": 1300}, "fail": {"count": 0, "ns": 0}, "cache_hit": {"count": 4, "ns": 4}},
    "response_stats": {"0": {"success": {"count": 3, "ns": 21}}, "1": {"success": {"count": 7, "ns": 7}}},
    "batch_stats": [
        {"batch_size": 1, "compute_infer": {"count": 1, "ns": 100}},
        {"batch_size": 2, "compute_infer": {"count": 6, "ns": 1200}},
    ],
    "memory_usage": [{"type": "CPU", "id": 0, "byte_size": 1024}, {"type": "GPU", "id": 1, "byte_size": 5}],
}


def merged_statistics(parts: Iterable[Iterable[Statistics]]) -> list[Statistics]:
    return finish(merged_statistics_steps(parts))


def with_text_numbers(value: Any, key: str = "") -> Any:
    """Statistics with 64-bit numbers as strings, as in protobuf's JSON form."""
    if isinstance(value, dict):
        return {name: with_text_numbers(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [with_text_numbers(each) for each in value]
    return value if key in ("name", "version", "type") else str(value)


def test_counts_add_up_by_version_and_batch_size_and_the_last_inference_is_the_latest() -> None:
    assert merged_statistics([[ONE], [OTHER]]) == [SUM]


def test_three_servers_add_up_as_two_do() -> None:
    nothing = no_statistics("m", "1")
    (found,) = merged_statistics([[ONE], [nothing], [OTHER]])
    assert found["inference_stats"].pop("queue") == {"count": 0, "ns": 0}
    assert {name: found[name] for name in SUM if name != "inference_stats"} == {
        name: SUM[name] for name in SUM if name != "inference_stats"
    }
    assert found["inference_stats"]["success"] == {"count": 13, "ns": 1300}


def test_numbers_may_be_texts() -> None:
    (found,) = merged_statistics([[with_text_numbers(ONE)], [with_text_numbers(OTHER)]])
    assert (found["version"], found["last_inference"], found["inference_count"]) == ("1", 1_795_314_999_999, 13)
    assert found["batch_stats"][1] == {"batch_size": "2", "compute_infer": {"count": 6, "ns": 1200}}


def test_what_one_server_leaves_out_is_the_others() -> None:
    assert merged_statistics([[{"name": "m", "version": "1"}], [ONE]]) == [ONE]


def test_other_versions_and_models_stand_by_themselves_in_order() -> None:
    second, of_a = {**ONE, "version": "2"}, {**ONE, "name": "a"}
    assert merged_statistics([[second, ONE], [of_a]]) == [of_a, ONE, second]


@pytest.mark.parametrize("parts", [[], [[]], [[], []]])
def test_of_nothing_there_is_nothing(parts: list[list[dict[str, Any]]]) -> None:
    assert merged_statistics(parts) == []


def test_what_is_merged_is_left_as_it_is() -> None:
    one, other = copy.deepcopy(ONE), copy.deepcopy(OTHER)
    merged_statistics([[one], [other]])
    assert (one, other) == (ONE, OTHER)


def test_others_have_a_turn_after_some_entries_of_whichever_server() -> None:
    part = [no_statistics(f"m{number}", "1") for number in range(PER_STEP + 5)]
    assert len(list(merged_statistics_steps([part, part]))) == 3
