"""Waits until a frontend that clients have left holds nothing for them any more."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MIB = 1 << 20


async def wait_until_still(measure: Callable[[], int]) -> int:
    """The value of `measure` when it has stopped changing."""
    last, still = measure(), 0
    while still < 10:
        await asyncio.sleep(0.02)
        still = still + 1 if measure() == last else 0
        last = measure()
    return last


@contextmanager
def freed_at_once() -> Iterator[None]:
    """No large object may wait for the garbage collector, which under load reaches the oldest objects late or
    never."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield
        left = tracemalloc.get_traced_memory()[0] - before
        assert left < MIB, f"{left} bytes are still held"
    finally:
        tracemalloc.stop()
        gc.enable()
