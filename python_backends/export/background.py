"""Background mode of a build: the lowest CPU priority, and an end with the process that started it."""

from __future__ import annotations

import os
import sys

from python_backends.runtime.parent import end_with_parent

_LOWEST_PRIORITY = 19


def run_in_background(parent: int) -> None:
    """Run this process and its children at the lowest priority from now on, and end it with its `parent`
    process.
    """
    os.nice(_LOWEST_PRIORITY)
    end_with_parent()
    if os.getppid() != parent:  # the parent ended before the prctl, which then never fires
        sys.exit(1)
