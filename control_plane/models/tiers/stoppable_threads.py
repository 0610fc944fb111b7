"""Thread pool for work that waits for disks and networks, with cancellation: a thread is told to end when its
caller has left.
"""

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
"""Time for a thread to notice that it should end; one that hangs in the kernel is left behind."""


class StoppableThreads:
    """Bounded thread pool whose work can be cancelled; `count` pieces of work run at a time, the
    others wait.
    """

    def __init__(self, count: int, *, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._slots = asyncio.Semaphore(count)

    async def run(self, work: Callable[Concatenate[Stop, ArgsT], ResultT], *args: ArgsT.args, **options: ArgsT.kwargs) -> ResultT:
        """Run `work(stop, *args)` in a thread. A cancellation sets `stop`, then waits a few seconds for the
        work to end.
        """
        # Work waits here and not in the pool's queue, from which a cancelled piece could not be withdrawn.
        async with self._slots:
            stop = threading.Event()
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._pool, lambda: work(stop, *args, **options))
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                stop.set()
                await asyncio.wait([future], timeout=_STOP_TIMEOUT_S)
                if future.done() and not future.cancelled():
                    future.exception()  # retrieved, or asyncio would log it as never retrieved
                raise

    def close(self) -> None:
        """Shut the pool down without waiting for work that is left; idempotent."""
        self._pool.shutdown(wait=False, cancel_futures=True)
