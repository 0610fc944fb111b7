"""CPU affinity of this process and of the processes that it starts (sched_setaffinity(2))."""

from __future__ import annotations

import os
from collections.abc import Sequence

from control_plane.core.errors import StartupError
from control_plane.core.text.cpus import cpus_of_worker, format_cpus


def allowed_cpus() -> tuple[int, ...]:
    """Return the CPUs that this process may run on: those of the machine, or those its container or parent
    allows.
    """
    return tuple(sorted(os.sched_getaffinity(0)))


def require_cpus(cpus: Sequence[int], *, setting: str, at_least: int = 1) -> None:
    """Raise StartupError if this process may not run on one of the CPUs, or if there are fewer than
    `at_least`.
    """
    missing = [cpu for cpu in cpus if cpu not in allowed_cpus()]
    if missing:
        raise StartupError(f"{setting}: CPU {format_cpus(missing)} cannot be used here; these can: {format_cpus(allowed_cpus())}")
    if cpus and len(cpus) < at_least:
        raise StartupError(f"{setting} {format_cpus(cpus)}: {at_least} workers need a CPU each; name more or start fewer workers")


def pin_worker(cpus: Sequence[int], worker: int, workers: int) -> None:
    """Pin this process to its share of `cpus`; with no CPUs given, pin it to none."""
    if cpus:
        os.sched_setaffinity(0, cpus_of_worker(cpus, worker, workers))
