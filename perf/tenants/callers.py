"""Callers of one tenant, in a process of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from perf.load import closed_loop
from perf.load.closed_loop import Ask, Loaded


def ask(address: str, request: bytes, callers: int, duration_s: float) -> Loaded:
    """Send the request by so many callers, each again when it was answered. A spawned process finds it here: one does
    not import the `__main__` of a package."""
    asks: Iterator[Ask] = itertools.repeat(Ask(request, ""))
    return closed_loop.run("http", address, asks, callers=callers, duration_s=duration_s)
