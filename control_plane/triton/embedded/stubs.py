"""The Python stubs of one Triton as /proc and /dev/shm show them: which run, how others have ended, and which regions are nobody's.

A stub is a child of Triton's, and for a moment bash before; its arguments name its model and its region (server 24.10). One that has ended
stays a zombie until Triton notices, and says by then no more than how it ended.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")

_STARTED = 19
"""Of the fields that `_stat` returns."""

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the place itself is meant


@dataclass(frozen=True, slots=True)
class Stub:
    """The process that one instance of a Python model runs in, or that completes a model's configuration."""

    pid: int
    region: str
    instance: str
    """`MODEL_N` as Triton calls it, or the model's own name while its configuration is completed."""
    path: str
    """The model's file, below the folder that has the model's name."""
    started_s: float
    """On the clock of `now_s`, in steps of `TICK_S`."""

    def is_of(self, models: Collection[str]) -> bool:
        """Whether it serves one of these."""
        return any(f"/{model}/" in self.path or re.fullmatch(rf"{re.escape(model)}(_\d+)?", self.instance) for model in models)


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is at one moment."""

    living: dict[int, Stub]
    ended: dict[int, str]
    """By process id, how: `ended with exit status 1`."""
    deserted: set[str]
    """Regions in which Triton talks to nobody that lives; empty while a child of Triton's is yet to become a stub, since one may be its."""


class Stubs:
    """All of one Triton; its methods read files, so threads call them."""

    def __init__(self, guardian: int, prefix: str, *, folder: Path = SHARED_MEMORY) -> None:
        """`guardian` is the process that starts Triton, `prefix` how the names of Triton's regions begin."""
        self._guardian = guardian
        self._folder = folder
        self._region = re.compile(rf"{re.escape(prefix)}[0-9a-f-]{{36}}")

    def look(self) -> Seen:
        living, ended, are_all_known = dict[int, Stub](), dict[int, str](), True
        regions = {name for name in os.listdir(self._folder) if self._region.fullmatch(name)}  # first: each is there before its stub
        for pid in self._children():
            with suppress(OSError):  # it has just gone
                if (stub := self._stub(pid)) is not None:
                    living[pid] = stub
                elif (how := _how_ended(pid)) is not None:
                    ended[pid] = how
                else:
                    are_all_known = False
        deserted = regions - {stub.region for stub in living.values()} if are_all_known else set[str]()
        return Seen(living, ended, deserted)

    def _children(self) -> Iterator[int]:
        """Of Triton, that is of whichever thread of it; none once it is gone."""
        for triton in _children_of(self._guardian)[:1]:  # the oldest: what else it has, it has inherited
            with suppress(FileNotFoundError):
                for thread in os.listdir(f"/proc/{triton}/task"):
                    yield from _children_of(triton, int(thread))

    def _stub(self, pid: int) -> Stub | None:
        started_s = int(_stat(pid)[_STARTED]) * TICK_S
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        if (region := self._region.search(line)) is None:
            return None
        before, after = line[: region.start()].split(), line[region.end() :].split()
        # After the region: two sizes, Triton's process, its backend's folder, a handle, the instance, the runtime.
        return Stub(pid, region[0], after[5] if len(after) > 5 else "", before[-1] if before else "", started_s)


def _children_of(process: int, thread: int | None = None) -> list[int]:
    """Zombies too, the oldest first."""
    with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
        return [*map(int, Path(f"/proc/{process}/task/{thread or process}/children").read_text().split())]
    return []


def _how_ended(pid: int) -> str | None:
    """Of one that is a zombie (proc_pid_stat(5): the last field is what wait(2) would return); None: it lives."""
    fields = _stat(pid)
    if fields[0] != "Z":
        return None
    code = os.waitstatus_to_exitcode(int(fields[-1]))
    if code >= 0:
        return f"ended with exit status {code}"
    return f"was killed by {signal_name(-code)}"


def _stat(pid: int) -> list[str]:
    """From the third on, the process's state; the second, its name, may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def now_s() -> float:
    """Since the machine was started, as processes' times are told."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def signal_name(number: int) -> str:
    """SIGKILL and the like."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
