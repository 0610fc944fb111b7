"""Observer of the Python stubs of one Triton by /proc and /dev/shm: which run, how others ended, which
regions are abandoned.

A stub is a child process of Triton, which is bash for a moment before; its arguments name its model and its
region (server 24.10). A stub that has ended stays a zombie until Triton notices, and by then shows nothing
but how it ended.
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

_PARENT, _STARTED = 1, 19
"""Indexes of the parent and the start time in the fields that `_stat` returns."""

_IN_REPOSITORY = re.compile(r"/repository/([^/]+)/\d+/")
_NUMBERS = re.compile("_[0-9]+_[0-9]+$")
"""Suffix of an instance: the numbers of its group and of itself in the group."""

_CHILDREN = "children"
_CHILDREN_ARE_LISTED = Path("/proc/thread-self", _CHILDREN).exists()
"""Whether the kernel lists the children of threads: it need not have been built to (CONFIG_PROC_CHILDREN), as those of
Firecracker and of some distributions for Kubernetes are not."""

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the place itself is meant


@dataclass(frozen=True, slots=True)
class Stub:
    """Process of one instance of a Python model, or one that completes a model's configuration."""

    pid: int
    region: str
    instance: str
    """`MODEL_N` as Triton calls it, or the model's own name while its configuration is completed."""
    path: str
    """Path of the model's file, below the folder that has the model's name."""
    started_s: float
    """Start time on the clock of `now_s`, in steps of `TICK_S`."""

    @property
    def model(self) -> str:
        """Model that the stub serves: by its file's folder, or, where that is a backend's, by its instance."""
        in_repository = _IN_REPOSITORY.search(self.path)
        return in_repository[1] if in_repository is not None else _NUMBERS.sub("", self.instance)

    def is_of(self, models: Collection[str]) -> bool:
        """Whether the stub serves one of these models."""
        # Not by any folder of the path: a model may have the name of one above the repository.
        return self.model in models or any(re.fullmatch(rf"{re.escape(model)}(_\d+)?", self.instance) for model in models)


@dataclass(frozen=True, slots=True)
class StubObservation:
    """Observation of all stubs at one moment."""

    living: dict[int, Stub]
    ended: dict[int, str]
    """How stubs ended, by process id: `ended with exit status 1`."""
    abandoned: set[str]
    """Regions whose stub is gone. Empty while a child of Triton has not become a stub yet, since any region
    may be that child's.
    """


class Stubs:
    """Observer of the stubs of one Triton. Its methods read files, so call them in threads."""

    def __init__(self, guardian: int, prefix: str, *, folder: Path = SHARED_MEMORY, triton: int | None = None) -> None:
        """`guardian` is the process that starts Triton, `prefix` how the names of Triton's regions begin, and
        `folder` where Triton has them. A Triton that others start is named by `triton` itself; it has no guardian.
        """
        self._guardian = guardian
        self._triton = triton
        self._folder = folder
        self._region = re.compile(rf"{re.escape(prefix)}[0-9a-f-]{{36}}")

    def observe(self) -> StubObservation:
        """Observe the stubs and regions that there are now."""
        living, ended, are_all_known = dict[int, Stub](), dict[int, str](), True
        # Regions are listed before processes: a region exists before its stub, so one that is listed has had
        # time to get one.
        regions = self._regions()
        for pid in self._children():
            with suppress(OSError):  # the process has just gone
                if (stub := self._stub(pid)) is not None:
                    living[pid] = stub
                elif (how := _how_ended(pid)) is not None:
                    ended[pid] = how
                else:
                    are_all_known = False
        abandoned = regions - {stub.region for stub in living.values()} if are_all_known else set[str]()
        return StubObservation(living, ended, abandoned)

    def end_of(self, stub: Stub) -> str | None:
        """Return how a stub has ended for which Triton has not waited; None while it runs, once it is gone, and
        if it has ended with Triton. Costs a few microseconds.
        """
        with suppress(OSError):
            fields = _stat(stub.pid)
            is_it = int(fields[_STARTED]) * TICK_S == stub.started_s  # else another process has its number by now
            if is_it and not self._is_orphan(int(fields[_PARENT])):
                return _how_ended(stub.pid)
        return None

    def kill(self, stub: Stub) -> bool:
        """Kill a stub; False if it has ended or is gone."""
        with suppress(OSError):
            if self._stub(stub.pid) == stub:
                os.kill(stub.pid, signal.SIGKILL)
                return True
        return False

    def _regions(self) -> set[str]:
        """Return the names of Triton's regions."""
        if self._triton is None:
            return self._listed()
        with suppress(OSError):  # the folder is one of the process's own, which has just ended
            return self._listed() & _mapped_by(self._triton)  # others' may begin alike
        return set()

    def _listed(self) -> set[str]:
        return {name for name in os.listdir(self._folder) if self._region.fullmatch(name)}

    def _is_orphan(self, parent: int) -> bool:
        """Whether a process with this parent was Triton's and has outlived it: its guardian inherits its children."""
        return parent == self._guardian if self._triton is None else parent != self._triton

    def _children(self) -> Iterator[int]:
        """Yield the children of all of Triton's threads; none once Triton is gone."""
        # The guardian's oldest: its other children are orphans that it inherited.
        for triton in children_of(self._guardian)[:1] if self._triton is None else (self._triton,):
            yield from children_of(triton)

    def _stub(self, pid: int) -> Stub | None:
        """Return the stub that a process is, by its arguments; None for another process."""
        started_s = int(_stat(pid)[_STARTED]) * TICK_S
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        if (region := self._region.search(line)) is None:
            return None
        before, after = line[: region.start()].split(), line[region.end() :].split()
        # After the region: two sizes, Triton's process, its backend's folder, a handle, the instance, the
        # runtime.
        return Stub(pid, region[0], after[5] if len(after) > 5 else "", before[-1] if before else "", started_s)


def children_of(process: int) -> list[int]:
    """Return the children of all threads of a process, zombies included, those of each thread the oldest first; none once
    it has ended."""
    found = list[int]()
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
                found += map(int, Path(f"/proc/{process}/task/{thread}/{_CHILDREN}").read_text().split())
    return found if found or _CHILDREN_ARE_LISTED else _children_by_parent(process)


def _children_by_parent(parent: int) -> list[int]:
    """Return the children of a process, the oldest first, by what all processes say of their parents."""
    found = list[tuple[int, int]]()
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with suppress(OSError):  # it has just ended
            fields = _stat(pid)
            if int(fields[_PARENT]) == parent:
                found.append((int(fields[_STARTED]), pid))
    return [pid for _, pid in sorted(found)]


def _mapped_by(process: int) -> set[str]:
    """Return the names of the files that a process has mapped, without their folders (proc_pid_maps(5)); none once it
    has ended."""
    try:
        lines = Path(f"/proc/{process}/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return set()
    return {line.rpartition("/")[2] for line in lines if "/" in line}


def _how_ended(pid: int) -> str | None:
    """Return how a zombie ended (proc_pid_stat(5): the last field is what wait(2) would return); None for a
    living process.
    """
    fields = _stat(pid)
    if fields[0] != "Z":
        return None
    code = os.waitstatus_to_exitcode(int(fields[-1]))
    if code >= 0:
        return f"ended with exit status {code}"
    return f"was killed by {signal_name(-code)}"


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third one, the state, on; the second, the name, may
    contain anything.
    """
    # Every stub is looked at five times a second: a third of what pathlib takes for it.
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
        return file.read().rpartition(b")")[2].decode().split()


def now_s() -> float:
    """Return the seconds since the machine was started, the clock of processes' start times."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
