"""Starts one Triton, and lets nothing of it outlive its owner: a program of its own, of the standard library only.

    python -I -S guardian.py OWNER_PID LOCK_FILE SHM_PREFIX SOCKETS CPUS COMMAND...

The launcher runs it in a session of its own, with a pipe as its standard input, and holds the other end. A line on the
pipe, such as `3.5`, orders a stop within that many seconds. The end of the pipe means that the owner is gone, however
it went: SIGTERM to Triton, a short grace, SIGKILL to everything beneath, then the regions it left in /dev/shm and the
folder SOCKETS, if it has one. SIGTERM to the guardian does the same. Its exit status is Triton's, 128 + N where signal N ended it.

The lock makes lives of one state folder follow each other: a new one waits until the old one's guardian has cleaned up.
Should the guardian itself be killed, the kernel kills Triton (PR_SET_PDEATHSIG), stubs end themselves within 0.3 s
of Triton, and the owner, or the next start, does the rest with the functions below.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import math
import os
import select
import shutil
import signal
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ORPHAN_GRACE_S = 3.0
"""For Triton to end by itself when nobody is left to wait for it: its stubs then close what they hold."""

LOCK_PATIENCE_S = 10.0
"""More than an orphaned Triton takes to go: its grace, and the time to reap."""

REAP_PATIENCE_S = 2.0
"""For killed processes to be gone; one that hangs in a device driver may never be."""

ROTATE_AT_BYTES = 10 * 2**20
"""Of Triton's log, in which models may print with every request; as much again is kept beside it."""

NOT_STARTED = 75
"""Exit status when another life holds the lock (EX_TEMPFAIL)."""

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the place itself is meant
_TICK_S = 1.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Owner:
    """The process that this Triton belongs to: still there, and what it wants."""

    def __init__(self, pid: int, pipe: int) -> None:
        self._pid = pid
        self._pipe: int | None = pipe
        self._wakeup = _wake_on_signals(self._on_signal)
        self._received = b""
        self.deadline_s = math.inf
        """When Triton must be gone, on the monotonic clock; infinite while it is wanted."""

    @property
    def wants_stop(self) -> bool:
        return self.deadline_s < math.inf

    def watch(self, timeout_s: float) -> None:
        """Wait for an order, a signal (also: a child has ended) or the time, and take note of it."""
        pipes = [self._wakeup] if self._pipe is None else [self._wakeup, self._pipe]
        readable = select.select(pipes, [], [], max(0.0, timeout_s))[0]
        if self._wakeup in readable:
            os.read(self._wakeup, 4096)
        if self._pipe in readable:
            self._read_orders()
        # The pipe's other end may have been inherited by a fork of the owner: then it never ends.
        if os.getppid() != self._pid:
            self._stop_within(ORPHAN_GRACE_S)

    def _read_orders(self) -> None:
        received = os.read(self._pipe or 0, 4096)
        *orders, self._received = (self._received + received).split(b"\n")
        for order in orders:
            self._stop_within(float(order))
        if not received:
            self._pipe = None
            self._stop_within(ORPHAN_GRACE_S)

    def _stop_within(self, grace_s: float) -> None:
        self.deadline_s = min(self.deadline_s, time.monotonic() + grace_s)

    def _on_signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self._stop_within(ORPHAN_GRACE_S)


def main(arguments: Sequence[str]) -> int:
    """Run one life of Triton; the exit status is the process's."""
    owner_pid, lock_path, shm_prefix, sockets, cpus, *command = arguments
    if cpus:  # before there are threads and children: all of them inherit it
        os.sched_setaffinity(0, map(int, cpus.split(",")))
    owner = Owner(int(owner_pid), sys.stdin.fileno())
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # whatever loses its parent beneath becomes our child
    try:
        with Path(lock_path).open("w") as lock:
            if not _acquire(lock.fileno(), owner):
                return NOT_STARTED
            return _live(command, owner, shm_prefix)
    finally:
        remove_sockets(sockets)


def _live(command: Sequence[str], owner: Owner, shm_prefix: str) -> int:
    remove_shared_memory(shm_prefix)
    try:
        return _guard(_spawn(command), owner)
    finally:
        _end_descendants()
        remove_shared_memory(shm_prefix)


def _acquire(lock: int, owner: Owner) -> bool:
    patience_s = time.monotonic() + LOCK_PATIENCE_S
    while not owner.wants_stop:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > patience_s:
                _say("another Triton of this state folder is still running")
                return False
            owner.watch(0.05)
        else:
            return True
    return False


def _spawn(command: Sequence[str]) -> int:
    guardian = os.getpid()
    with _held_back(signal.SIGTERM):
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if pid:
        return pid
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would pass that on
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == guardian:  # else it died before it could be watched
            os.execv(command[0], list(command))  # noqa: S606
    except OSError as exc:
        _say(f"cannot start {command[0]}: {exc.strerror}")
    finally:
        os._exit(127)


@contextlib.contextmanager
def _held_back(number: signal.Signals) -> Iterator[None]:
    """A child has our handlers until it is another program: one that an early order to stop meets there would swallow it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def _guard(triton: int, owner: Owner) -> int:
    """Wait for Triton's end, bringing it about when the owner wants that; returns its exit status."""
    terminated = killed = False
    while (status := _reap(triton)) is None:
        if owner.wants_stop and not terminated:
            terminated = True
            os.kill(triton, signal.SIGTERM)
        if time.monotonic() >= owner.deadline_s and not killed:
            killed = True
            _say("Triton did not end in time and is killed")
            os.kill(triton, signal.SIGKILL)
        keep_small(sys.stdout.fileno())
        owner.watch(_TICK_S if killed else min(_TICK_S, owner.deadline_s - time.monotonic()))
    return status


def keep_small(log: int) -> None:
    """Put what has been logged aside once that is too much, and go on in the same file: Triton and its stubs have it open, to append."""
    with contextlib.suppress(OSError):  # it has been removed, or the disk is full
        if stat.S_ISREG(os.fstat(log).st_mode) and os.fstat(log).st_size > ROTATE_AT_BYTES:
            path = os.readlink(f"/proc/self/fd/{log}")
            shutil.copyfile(path, f"{path}.1")  # what is written between this and the next is lost
            os.ftruncate(log, 0)


def _reap(triton: int) -> int | None:
    """Collect every child that has ended; the status of `triton` if it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == triton:
                code = os.waitstatus_to_exitcode(ended[1])
                status = code if code >= 0 else 128 - code
    return status


def _end_descendants() -> None:
    """Kill and reap until no child is left: as subreaper we would be the parent of anything that lives on."""
    patience_s = time.monotonic() + REAP_PATIENCE_S
    while time.monotonic() < patience_s:
        kill_all(descendants(os.getpid()))
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)
    _say("some processes could not be killed")


def descendants(ancestor: int) -> list[int]:
    """The processes beneath `ancestor`."""
    children: dict[int, list[int]] = {}
    for pid, parent, _ in _process_table():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(ancestor, ()))
    for pid in found:  # grows as it goes
        found += children.get(pid, ())
    return found


def session_members(session: int) -> list[int]:
    """The living processes of a session: all of a Triton's, since its guardian leads one, unless they left it."""
    return [pid for pid, _, its_session in _process_table() if its_session == session]


def _process_table() -> Iterator[tuple[int, int, int]]:
    """Pid, parent and session of everything that is not a zombie, by /proc/[pid]/stat (proc_pid_stat(5))."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                # The name, in brackets, may hold anything.
                fields = Path(entry.path, "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] != "Z":
                    yield int(entry.name), int(fields[1]), int(fields[3])


def kill_all(pids: Sequence[int]) -> None:
    """SIGKILL each; one that is gone already is no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def remove_shared_memory(prefix: str) -> None:
    """Remove the regions in /dev/shm whose names start with `prefix`."""
    for region in _SHARED_MEMORY.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)


def remove_sockets(folder: str) -> None:
    """Remove the folder of a life's sockets; empty where it had none."""
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def _wake_on_signals(handler: object) -> int:
    """Have `handler` called for signals; returns a pipe that becomes readable at each, which ends a `select`."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, handler)  # type: ignore[arg-type]
    return reader


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def _say(text: str) -> None:
    sys.stderr.write(f"guardian: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
