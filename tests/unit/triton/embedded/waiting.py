"""Helper that waits for conditions that other processes bring about."""

from __future__ import annotations

import time
from collections.abc import Callable

SOON_S = 60.0
"""Time limit of waits: far more than anything here takes, and less than the grace that would hide a failure."""


def wait_for(condition: Callable[[], bool], what: str, within_s: float = SOON_S) -> None:
    """Poll until the condition holds. Raises AssertionError: it does not within the time."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not come about within {within_s} s"
        time.sleep(0.01)
