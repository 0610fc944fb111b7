"""Finder of a Triton that others have started, by its command line in /proc, and of what it has started.

Where the process namespace is shared (the same machine; in a pod `shareProcessNamespace`) and the user is the
same, its stubs are watched and its memory is measured as of an embedded Triton.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from control_plane.core.errors import ControlPlaneError
from control_plane.triton.embedded.watchdogs.stubs import children_of

_PROGRAM = "tritonserver"
_REPOSITORY_FLAGS = ("--model-repository", "--model-store")
_PREFIX = re.compile(r"python,shm-region-prefix-name=(.+)")
_DEFAULT_PREFIX = "triton_python_backend_shm_region_"
"""Begin of the names of its regions in /dev/shm unless a flag says otherwise (server 24.10)."""


class ProcessesUnseen(ControlPlaneError):
    """Triton's processes cannot be watched from here; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class TritonProcesses:
    """A running Triton, as /proc shows it."""

    pid: int
    shm_prefix: str
    shared_memory: Path
    """Its /dev/shm, which in another container is another one than ours."""

    def all(self) -> Iterator[int]:
        """Yield its process and all that descend from it."""
        found = [self.pid]
        while found:
            yield (pid := found.pop())
            found += children_of(pid)


def find_triton(repository: Path, *, proc: Path = Path("/proc")) -> TritonProcesses:
    """Find the Triton that loads from this folder. Raises ProcessesUnseen. It reads files, so call it in threads."""
    running = {pid: arguments for pid, arguments in _command_lines(proc) if _loads_from(arguments, str(repository))}
    if len(running) != 1:
        why = f"{len(running)} processes load" if running else "no process is seen that loads"
        raise ProcessesUnseen(f"{why} from {repository}: share the process namespace (in a pod shareProcessNamespace: true)")
    pid, arguments = running.popitem()
    shared_memory = proc / str(pid) / "root/dev/shm"
    try:
        is_ours = os.geteuid() in (0, (proc / str(pid)).stat().st_uid)
        os.listdir(shared_memory)
    except OSError:
        is_ours = False
    if not is_ours:
        raise ProcessesUnseen(f"process {pid} is another user's: run both as the same user (in a pod runAsUser)")
    return TritonProcesses(pid, _shm_prefix(arguments), shared_memory)


def _command_lines(proc: Path) -> Iterator[tuple[int, list[str]]]:
    for each in proc.iterdir():
        if each.name.isdecimal():
            with suppress(OSError):
                line = (each / "cmdline").read_bytes().decode(errors="surrogateescape")
                yield int(each.name), line.rstrip("\0").split("\0")


def _loads_from(arguments: Sequence[str], repository: str) -> bool:
    if os.path.basename(arguments[0]) != _PROGRAM:
        return False
    values = list(_values(arguments, _REPOSITORY_FLAGS))
    return any(os.path.normpath(value) == repository for value in values)


def _shm_prefix(arguments: Sequence[str]) -> str:
    found = (_PREFIX.fullmatch(value) for value in _values(arguments, ("--backend-config",)))
    return next((each[1] for each in found if each is not None), _DEFAULT_PREFIX)


def _values(arguments: Sequence[str], flags: Sequence[str]) -> Iterator[str]:
    """Yield the values of flags, written `--flag=VALUE` or `--flag VALUE`."""
    for number, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in flags:
            yield value if equals else "".join(arguments[number + 1 : number + 2])
