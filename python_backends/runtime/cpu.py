"""How many CPUs this process may use: what threads are divided among.

A stub inherits the cores that a `--host-policy` pinned its server to, and in a container the quota of its control group. ONNX Runtime's own
default looks at neither the quota nor the other instances, and starts a thread per core of the machine for each of them.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from python_backends.runtime.model_config import ModelConfig

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")

# The native ONNX Runtime backend's key; every runtime here understands it.
THREADS_PARAMETER = "intra_op_thread_count"


def usable_cpu_count(quota_file: Path = CGROUP_QUOTA) -> int:
    """CPUs that this process is allowed to run on, limited by its control group's quota (cgroup v2), at least 1."""
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(allowed, _quota(quota_file, default=allowed)))


def threads_per_instance(cpu_count: int, instance_count: int) -> int:
    """Threads for one of `instance_count` equal instances, so that together they do not outnumber `cpu_count` CPUs, at least 1."""
    return max(1, cpu_count // max(1, instance_count))


def thread_count(config: ModelConfig, cpu_count: int) -> int:
    """Threads for one instance: what the configuration says, or with 0 or nothing its share of `cpu_count` CPUs.

    Raises:
        ConfigError: The parameter is no integer.
    """
    return config.integer(THREADS_PARAMETER, 0) or threads_per_instance(cpu_count, config.instance_count)


def _quota(quota_file: Path, *, default: int) -> int:
    try:
        quota_us, period_us = quota_file.read_text().split()
        return math.ceil(int(quota_us) / int(period_us))
    except (OSError, ValueError):
        # No cgroup v2 here, or "max": no quota.
        return default
