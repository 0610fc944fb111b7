"""Main memory that processes hold, read from /proc (proc_pid_smaps_rollup(5), proc_pid_statm(5)).

It is the proportional set size (PSS): each process that maps a shared page counts a part of it, so a sum over
processes counts the page once. The resident set size would count the libraries that Triton's stubs share once
per stub.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PSS = "Pss:"


def held_bytes(pids: Iterable[int], *, proc: Path = _PROC) -> int | None:
    """Return the bytes that the processes hold together; None if none of them exists or can be read."""
    found = [size for pid in pids if (size := _of_one(proc / str(pid))) is not None]
    return sum(found) if found else None


def _of_one(process: Path) -> int | None:
    proportional = _proportional(process)
    return proportional if proportional is not None else _resident(process)


def _proportional(process: Path) -> int | None:
    """Return the PSS in bytes; None if it cannot be read: another user's process, an old kernel, or the
    process has ended.
    """
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
