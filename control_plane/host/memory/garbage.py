"""Tuning of Python's garbage collector, which stops all requests of a process while it scans objects."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_collector_paused() -> Iterator[None]:
    """No garbage collections within the block, which is for imports, nor any later that look at what it has made.

    Of 250,000 objects a thousand become garbage; looking for them takes a quarter of a start's time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


_YOUNG_OBJECTS = 5_000
"""Objects that are made before the young ones are scanned, 700 by default. Requests in flight have some twenty each: with
64 of them there were always so many, and every scan went through all that was alive. What is in a cycle is freed later by
as much, so much higher is no good either."""


def freeze_garbage_collector() -> None:
    """Exempt all objects that exist now from garbage collection (gc.freeze), and scan later ones less often.

    Modules and wired services are 120,000 objects; each full collection would stop all requests for 70 ms to
    scan them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])


def collect_no_garbage_in_forks() -> None:
    """Collect nothing between a fork and the program that the new process executes. Call it once.

    What is freed there may wait for a thread that a fork leaves behind, as a channel of gRPC does. Such a process never gets to
    its program, and uvloop's `uv_spawn`, which waits for that in C, would stop this one for good.
    """
    were_enabled: list[bool] = []

    def before() -> None:
        were_enabled.append(gc.isenabled())
        gc.disable()

    def after() -> None:
        if were_enabled.pop():
            gc.enable()

    os.register_at_fork(before=before, after_in_parent=after)
