"""A bounded number of threads for work that waits for disks and networks, each told to end when nobody wants its result any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

from control_plane.models.ports import Stop

ArgsT = ParamSpec("ArgsT")
ResultT = TypeVar("ResultT")

_STOP_TIMEOUT_S = 5.0
"""For a thread to see that it should end; one that hangs in the kernel is left behind."""


class StoppableThreads:
    """`count` pieces of work at a time; the others wait for their turn."""

    def __init__(self, count: int, *, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._slots = asyncio.Semaphore(count)

    async def run(self, work: Callable[Concatenate[Stop, ArgsT], ResultT], *args: ArgsT.args, **options: ArgsT.kwargs) -> ResultT:
        """`work(stop, *args)` in a thread. Cancelling sets `stop` and returns when the work has ended."""
        async with self._slots:  # so that nothing waits in the pool, where a cancelled piece would keep its place
            stop = threading.Event()
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._pool, lambda: work(stop, *args, **options))
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                stop.set()
                await asyncio.wait([future], timeout=_STOP_TIMEOUT_S)
                if future.done() and not future.cancelled():
                    future.exception()  # nobody else reads it
                raise

    def close(self) -> None:
        """Without waiting for what is left; idempotent."""
        self._pool.shutdown(wait=False, cancel_futures=True)
