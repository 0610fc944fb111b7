"""Background mode of a build: the lowest CPU priority, and an end with the process that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_LOWEST_PRIORITY = 19


def run_in_background(parent: int) -> None:
    """Run this process and its children at the lowest priority from now on, and end it with its `parent`
    process.
    """
    os.nice(_LOWEST_PRIORITY)
    end_with_parent()
    if os.getppid() != parent:  # the parent ended before the prctl, which then never fires
        sys.exit(1)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, in whatever way. Linux only, like Triton."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")
