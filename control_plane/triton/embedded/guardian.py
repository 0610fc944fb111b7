"""Guardian program: starts one Triton and lets none of its processes outlive its owner; it uses the standard
library only.

python -I -S guardian.py OWNER_PID LOCK_FILE SHM_PREFIX SOCKETS CPUS COMMAND...

The launcher runs it in a session of its own, with a pipe as its standard input, and holds the other end. A
line on the pipe, such as `3.5`, orders a stop within that many seconds. The end of the pipe means that the
owner is gone, however it went: then Triton gets SIGTERM, after a short grace everything beneath gets SIGKILL,
and the regions in /dev/shm and the folder SOCKETS, if there is one, are removed. SIGTERM to the guardian does
the same. Its exit status is Triton's, or 128 + N if signal N ended Triton.

By the lock there is one Triton per state folder: a new one waits until the guardian of the old one has
cleaned up. If the guardian itself is killed the kernel kills Triton (PR_SET_PDEATHSIG), stubs end by
themselves within 0.3 s of Triton, and the owner, or the next start, does the rest with the functions below.
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
"""Grace for an orphaned Triton to end by itself, so that its stubs can release what they hold."""

LOCK_PATIENCE_S = 10.0
"""Time to wait for the lock: more than an orphaned Triton takes to end, its grace and the time to reap."""

REAP_PATIENCE_S = 2.0
"""Time to wait for killed processes to be gone; one that hangs in a device driver may stay for ever."""

ROTATE_AT_BYTES = 10 * 2**20
"""Size at which Triton's log is rotated, since models may print with every request; one old file of this size
is kept.
"""

NOT_STARTED = 75
"""Exit status when another life holds the lock (EX_TEMPFAIL)."""

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the place itself is meant
_TICK_S = 1.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Owner:
    """Owner of this Triton: the process that started the guardian, with its orders and its end."""

    def __init__(self, pid: int, pipe: int) -> None:
        self._pid = pid
        self._pipe: int | None = pipe
        self._wakeup = _wake_on_signals(self._on_signal)
        self._received = b""
        self.deadline_s = math.inf
        """Deadline for Triton's end on the monotonic clock; infinite while Triton is wanted."""

    @property
    def wants_stop(self) -> bool:
        return self.deadline_s < math.inf

    def watch(self, timeout_s: float) -> None:
        """Wait for an order, a signal (such as the end of a child) or the timeout, and note what has come."""
        pipes = [self._wakeup] if self._pipe is None else [self._wakeup, self._pipe]
        readable = select.select(pipes, [], [], max(0.0, timeout_s))[0]
        if self._wakeup in readable:
            os.read(self._wakeup, 4096)
        if self._pipe in readable:
            self._read_orders()
        # If a fork of the owner has inherited the pipe's other end, the pipe does not end with the owner; the
        # parent's id tells.
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
    """Run one Triton from start to end; return the exit status of this process."""
    owner_pid, lock_path, shm_prefix, sockets, cpus, *command = arguments
    if cpus:  # set before there are threads and children, which inherit it
        os.sched_setaffinity(0, map(int, cpus.split(",")))
    owner = Owner(int(owner_pid), sys.stdin.fileno())
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # descendants that lose their parent become our children, so that we can find and reap them
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
    """Wait for the lock of the state folder; False if the owner orders a stop or the wait takes too long."""
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
    """Fork and exec Triton, with SIGKILL as its parent-death signal; return its process id."""
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
        if os.getppid() == guardian:  # otherwise it died before the signal was set, and nobody would end Triton
            os.execv(command[0], list(command))  # noqa: S606
    except OSError as exc:
        _say(f"cannot start {command[0]}: {exc.strerror}")
    finally:
        os._exit(127)


@contextlib.contextmanager
def _held_back(number: signal.Signals) -> Iterator[None]:
    """Block a signal during a fork. Until its exec a child has our handlers, which would swallow an early
    order to stop.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def _guard(triton: int, owner: Owner) -> int:
    """Wait for Triton's end, bring it about if the owner orders a stop, and return Triton's exit status."""
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
    """Rotate the log by copy and truncate once it is too large: Triton and its stubs have this very file
    open, for appending.
    """
    with contextlib.suppress(OSError):  # the file has been removed, or the disk is full
        if stat.S_ISREG(os.fstat(log).st_mode) and os.fstat(log).st_size > ROTATE_AT_BYTES:
            path = os.readlink(f"/proc/self/fd/{log}")
            shutil.copyfile(path, f"{path}.1")  # what is written between the copy and the truncation is lost
            os.ftruncate(log, 0)


def _reap(triton: int) -> int | None:
    """Reap every child that has ended; return the exit status of `triton` if it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == triton:
                code = os.waitstatus_to_exitcode(ended[1])
                status = code if code >= 0 else 128 - code
    return status


def _end_descendants() -> None:
    """Kill and reap until no child is left; since we are the subreaper, any process that lives on is a child
    of ours.
    """
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
    """Return the processes beneath `ancestor`."""
    children: dict[int, list[int]] = {}
    for pid, parent, _ in _process_table():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(ancestor, ()))
    for pid in found:  # the list grows while it is walked: breadth first
        found += children.get(pid, ())
    return found


def session_members(session: int) -> list[int]:
    """Return the living processes of a session: those of a Triton, whose guardian leads the session, unless
    they have left it.
    """
    return [pid for pid, _, its_session in _process_table() if its_session == session]


def _process_table() -> Iterator[tuple[int, int, int]]:
    """Yield pid, parent and session of every process that is not a zombie, from /proc/[pid]/stat
    (proc_pid_stat(5)).
    """
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended, or is another user's, which /proc may hide (hidepid=1)
                # The name, in brackets, may contain anything, brackets too: hence the last one counts.
                fields = Path(entry.path, "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] != "Z":
                    yield int(entry.name), int(fields[1]), int(fields[3])


def kill_all(pids: Sequence[int]) -> None:
    """Send SIGKILL to each process; one that is gone already is no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def remove_shared_memory(prefix: str) -> None:
    """Remove the regions in /dev/shm whose names start with `prefix`."""
    for region in _SHARED_MEMORY.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)


def remove_sockets(folder: str) -> None:
    """Remove the folder of Triton's sockets; does nothing if the name is empty."""
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def _wake_on_signals(handler: object) -> int:
    """Install `handler` for signals, and return a pipe that becomes readable at each signal, so that a
    `select` ends.
    """
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
