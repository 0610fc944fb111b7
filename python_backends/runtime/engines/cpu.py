"""Number of CPUs that this process may use, and the division of threads among a model's instances.

A stub inherits the CPUs that a `--host-policy` pinned its server to, and in a container the quota of its
control group. ONNX Runtime's own default considers neither the quota nor the other instances: each instance
starts a thread per core of the machine.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from python_backends.runtime.model_config import ModelConfig

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")

# Parameter of the native ONNX Runtime backend; every runtime here understands it.
THREADS_PARAMETER = "intra_op_thread_count"


def usable_cpu_count(quota_file: Path = CGROUP_QUOTA) -> int:
    """Return the number of CPUs that this process may use: its affinity, limited by the cgroup v2 quota; at
    least 1.
    """
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(allowed, _quota(quota_file, default=allowed)))


def threads_per_instance(cpu_count: int, instance_count: int) -> int:
    """Return the threads of each of `instance_count` instances, so that together they do not exceed the CPUs;
    at least 1.
    """
    return max(1, cpu_count // max(1, instance_count))


def thread_count(config: ModelConfig, cpu_count: int) -> int:
    """Return the threads of one instance: the configured number, or if that is 0 or absent its share of the
    CPUs.

    Raises:
        ConfigError: The parameter is not an integer.
    """
    return config.integer(THREADS_PARAMETER, 0) or threads_per_instance(cpu_count, config.instance_count)


def spin_briefly() -> None:
    """Let threads that wait for each other sleep soon; before a library with OpenMP is loaded.

    It spins for milliseconds by default. Where other processes want the CPUs, too, a thread then spins while the one it waits
    for does not run: a step of a language model took five times as long beside a busy process, and as long as before alone.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")


def _quota(quota_file: Path, *, default: int) -> int:
    try:
        quota_us, period_us = quota_file.read_text().split()
        return math.ceil(int(quota_us) / int(period_us))
    except (OSError, ValueError):
        # No cgroup v2, or the quota is "max", which means none.
        return default
