"""Waits for what another process does."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.triton.embedded import waiting

SOON_S = 60.0
"""Time limit of the tests' waits: far more than anything here takes, and less than the grace that would hide
a failure.
"""


def wait_for(condition: Callable[[], bool], what: str, within_s: float = SOON_S) -> None:
    waiting.wait_for(condition, what, within_s)
