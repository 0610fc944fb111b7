"""Main memory that processes hold, out of /proc (proc_pid_smaps_rollup(5), proc_pid_statm(5)).

Proportional set size: a page that several processes map counts in parts, so that a sum over processes counts it once. Resident set
size would count the libraries that Triton's stubs share once for each of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PSS = "Pss:"


def held_bytes(pids: Iterable[int], *, proc: Path = _PROC) -> int | None:
    """Of all together; one that has ended holds none. None: there is no such process, or none that can be read."""
    found = [size for pid in pids if (size := _of_one(proc / str(pid))) is not None]
    return sum(found) if found else None


def _of_one(process: Path) -> int | None:
    proportional = _proportional(process)
    return proportional if proportional is not None else _resident(process)


def _proportional(process: Path) -> int | None:
    """None where it cannot be read: another user's, an old kernel's, or one that has ended."""
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(_PSS)), None)


def _resident(process: Path) -> int | None:
    try:
        return int((process / "statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return None
