"""Sign of work in a group of processes: what the kernel counts of each (proc_pid_stat(5), proc_pid_io(5)).

CPU time comes in ticks of 10 ms, so a thread that only looks at a clock now and then hardly counts. What waits for a disk takes
no CPU time: its page faults and reads count, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_MAJOR_FAULTS, _USER_TICKS, _SYSTEM_TICKS = 9, 11, 12
"""Places after the name, which ends with the last bracket: `state` has place 0."""


def work_of(pids: Iterable[int], proc: Path = Path("/proc")) -> int:
    """Return a number that changes whenever one of these processes has computed, read or been given a page. Reads files."""
    return sum(_work_of(proc / str(pid)) for pid in pids)


def _work_of(process: Path) -> int:
    work = 0
    with suppress(OSError):  # it has just ended
        fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
        work = sum(int(fields[place]) for place in (_MAJOR_FAULTS, _USER_TICKS, _SYSTEM_TICKS))
    with suppress(OSError):  # another user's, of which only root may read this
        work += sum(int(line.split()[1]) for line in (process / "io").read_text().splitlines() if line.startswith("rchar"))
    return work
