"""Counting usable CPUs and dividing them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from python_backends.runtime.engines.cpu import thread_count, threads_per_instance, usable_cpu_count
from python_backends.runtime.errors import ConfigError
from tests.unit.python_backends.configs import config, parameters

ALLOWED = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("content", "count"),
    [
        pytest.param("max 100000\n", ALLOWED, id="no-quota"),
        pytest.param("100000 100000\n", 1, id="one-cpu"),
        pytest.param("50000 100000\n", 1, id="half-a-cpu-is-still-one"),
        pytest.param("100001 100000\n", min(2, ALLOWED), id="a-part-of-a-cpu-counts"),
        pytest.param("99900000 100000\n", ALLOWED, id="quota-beyond-the-machine"),
        pytest.param("nonsense", ALLOWED, id="not-understood"),
    ],
)
def test_the_quota_of_the_control_group_limits_the_cpus(tmp_path: Path, content: str, count: int) -> None:
    quota_file = tmp_path / "cpu.max"
    quota_file.write_text(content)

    assert usable_cpu_count(quota_file) == count


def test_without_cgroup_v2_the_affinity_counts(tmp_path: Path) -> None:
    assert usable_cpu_count(tmp_path / "absent") == ALLOWED


def test_cores_that_the_process_is_pinned_to_are_all_there_is(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable_cpu_count(tmp_path / "absent") == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(("cpus", "instances", "threads"), [(8, 1, 8), (8, 2, 4), (8, 3, 2), (2, 5, 1), (1, 1, 1), (4, 0, 4)])
def test_instances_share_the_cpus(cpus: int, instances: int, threads: int) -> None:
    assert threads_per_instance(cpus, instances) == threads


def test_what_is_configured_counts_and_otherwise_an_instances_share() -> None:
    two = {"instance_group": [{"count": 2, "gpus": []}]}

    assert thread_count(config(**two), 8) == 4
    assert thread_count(config(**two, parameters=parameters(intra_op_thread_count="3")), 8) == 3
    assert thread_count(config(**two, parameters=parameters(intra_op_thread_count="0")), 8) == 4
    with pytest.raises(ConfigError, match="'intra_op_thread_count' must be an integer, not 'many'"):
        thread_count(config(parameters=parameters(intra_op_thread_count="many")), 8)
