"""How many CPUs this process may use: what threads are divided among.

A stub inherits the cores that a `--host-policy` pinned its server to, and in a container the quota of its control group. ONNX Runtime's own
default looks at neither the quota nor the other instances, and starts a thread per core of the machine for each of them.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cpu_count(quota_file: Path = CGROUP_QUOTA) -> int:
    """CPUs that this process is allowed to run on, limited by its control group's quota (cgroup v2), at least 1."""
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(allowed, _quota(quota_file, default=allowed)))


def threads_per_instance(cpu_count: int, instance_count: int) -> int:
    """Threads for one of `instance_count` equal instances, so that together they do not outnumber `cpu_count` CPUs, at least 1."""
    return max(1, cpu_count // max(1, instance_count))


def _quota(quota_file: Path, *, default: int) -> int:
    try:
        quota_us, period_us = quota_file.read_text().split()
        return math.ceil(int(quota_us) / int(period_us))
    except (OSError, ValueError):
        # No cgroup v2 here, or "max": no quota.
        return default
