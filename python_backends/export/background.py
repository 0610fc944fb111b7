"""A process that works for another one beside it: it leaves the CPUs to whoever wants them, and does not outlive the other."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_LEAST_NICE = 19


def stay_in_the_background(parent: int) -> None:
    """Run at the lowest priority from now on, also what is started from here, and end with the process `parent`, which started this."""
    os.nice(_LEAST_NICE)
    end_with_parent()
    if os.getppid() != parent:  # it ended before that could be asked for
        sys.exit(1)


def end_with_parent() -> None:
    """Have the kernel kill this process when the one that has started it ends, however it ends. Linux only, as is Triton."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")
