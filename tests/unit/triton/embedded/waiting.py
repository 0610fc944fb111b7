"""Waits for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], bool], what: str, within_s: float) -> None:
    """Poll until it is so; AssertionError when the time is over."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not come about within {within_s} s"
        time.sleep(0.01)
