"""The clock of this machine by which leases count."""

from __future__ import annotations

import time


def boot_time_s() -> float:
    """Return the seconds of a clock that nobody sets, that runs on while the machine sleeps, and that all
    processes of this machine share.

    Not the event loop's time: uvloop reads that once per turn, so after a pause it still shows the time
    before the pause.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)
