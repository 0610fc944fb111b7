from __future__ import annotations

import asyncio
import threading
import time

import pytest

from control_plane.models.ports import Stop
from control_plane.models.tiers.stoppable_threads import StoppableThreads


async def test_a_result_and_an_error_come_back() -> None:
    threads = StoppableThreads(1, name="t")

    def fail(stop: Stop) -> None:
        raise ValueError("no")

    assert await threads.run(lambda stop, number: number + 1, 1) == 2
    with pytest.raises(ValueError, match="no"):
        await threads.run(fail)
    threads.close()


async def test_so_many_run_at_a_time() -> None:
    threads, lock = StoppableThreads(2, name="t"), threading.Lock()
    running = most = 0

    def work(stop: Stop) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1

    await asyncio.gather(*(threads.run(work) for _ in range(8)))
    assert most == 2
    threads.close()


async def test_cancelling_tells_the_work_and_waits_for_its_end_and_one_that_waits_never_begins() -> None:
    threads, began = StoppableThreads(1, name="t"), list[str]()

    def work(stop: Stop, name: str) -> None:
        began.append(name)
        while not stop.is_set():
            time.sleep(0.005)
        began.append(f"{name} ended")

    loop = asyncio.get_running_loop()
    first = loop.create_task(threads.run(work, "first"))
    second = loop.create_task(threads.run(work, "second"))
    while not began:
        await asyncio.sleep(0.005)
    second.cancel()
    first.cancel()
    await asyncio.wait([first, second])
    assert (first.cancelled(), second.cancelled(), began) == (True, True, ["first", "first ended"])
    assert await threads.run(lambda stop: "the next") == "the next"
    threads.close()
