"""Object stores whose clients are not asynchronous, and that do not answer."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from control_plane.jobs.files.adapters.object_files import ObjectFiles
from tests.aio import settle


class Away:
    """A client of a store that does not answer until it may."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.has_held_up_others = False

    def info(self, key: str) -> dict[str, Any]:
        if not self.may_answer.wait(10.0):
            self.has_held_up_others = True
            self.may_answer.set()
        return {"type": "file", "size": len(key)}


async def test_they_hold_none_of_the_threads_that_others_need() -> None:
    files, away = ObjectFiles("memory://jobs"), Away()
    files._fs = away
    async with asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(files.size(("a",))) for _ in range(64)]
        await settle()
        await asyncio.to_thread(away.may_answer.set)
    assert not away.has_held_up_others
    assert len({await each for each in asking}) == 1
    await files.close()
