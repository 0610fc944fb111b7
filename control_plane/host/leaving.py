"""End of this process when its work is done, whatever its threads still wait for."""

from __future__ import annotations

import os
import threading

LEAVE_WITHIN_S = 3.0
"""Time for the threads of a gateway or node whose work is done: to write a small file takes less."""


def end_within(limit_s: float) -> None:
    """Have this process end with status 0 after so long, if it has not ended by itself.

    Python waits at its exit for all threads of pools. One that digests a large model's files goes on for a minute, and one that
    reads from a network file system which has gone away goes on for ever.
    """
    leaving = threading.Timer(limit_s, os._exit, (0,))
    leaving.daemon = True  # it is not waited for itself
    leaving.start()
