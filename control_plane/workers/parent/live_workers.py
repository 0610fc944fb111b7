"""The workers that run now: what is said to all of them, and how long their answers are waited for.

`workers/parent/workers` adds each worker when it starts and removes it when it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from control_plane.concurrency.broadcast import Broadcast
from control_plane.workers.messages import ToWorker
from control_plane.workers.parent.worker_handle import WorkerHandle


class LiveWorkers:
    """Set of the workers that run now, by number."""

    def __init__(self) -> None:
        self._live: dict[int, WorkerHandle] = {}
        self._changed = Broadcast()

    def __iter__(self) -> Iterator[WorkerHandle]:
        return iter(self._live.values())

    def __contains__(self, worker: object) -> bool:
        return worker in self._live.values()

    def add(self, number: int, worker: WorkerHandle) -> None:
        self._live[number] = worker

    def remove(self, number: int) -> None:
        """Forget a worker that has ended; whoever waits for it looks again."""
        del self._live[number]
        self.changed()

    def changed(self) -> None:
        """Let everything that waits in `until` look again."""
        self._changed.wake()

    def tell(self, message: ToWorker) -> None:
        """Send a message to each of them."""
        for worker in self:
            worker.process.send(message)

    async def until(self, has_happened: Callable[[], bool]) -> None:
        """Wait until it has happened; asked again whenever a worker has changed."""
        while not has_happened():
            await self._changed.wait()
