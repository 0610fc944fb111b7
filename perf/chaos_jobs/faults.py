"""Faults at random moments: kill -9 and SIGSTOP of what computes jobs and of what keeps them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Protocol

from perf.chaos.sites.gateways import Gateway
from perf.chaos_jobs.site import Site, Worker

Fault = Callable[[float], Coroutine[Any, Any, None]]
"""Fault injection: a coroutine function that holds the fault for so many seconds."""
_LASTS_S, _PAUSE_S = (0.3, 5.0), (0.5, 2.5)
_LONG_S, _LONG = 18.0, 0.08
"""Longer than a claim's lease of 15 s, and how often: a worker that goes on after it finds that its jobs are another's."""
_AGAIN_S = 1.0
_AT_ONCE = 2
_KILL, _STOP = "kill -9 of", "SIGSTOP of"


class Faults:
    """Faults of several processes at a time, drawn by the seed; `run` does them."""

    def __init__(self, site: Site, seed: int) -> None:
        self._site = site
        self._random = Random(f"faults {seed}")
        self._is_over = asyncio.Event()
        self._down: set[str] = set()
        self.done: Counter[str] = Counter()
        """How often each was done, in words."""

    def end(self) -> None:
        """Begin no more."""
        self._is_over.set()

    async def run(self) -> None:
        """Do faults until `end`; what was killed or held still is up again when it returns."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(self._one_after_the_other())

    async def _one_after_the_other(self) -> None:
        while not self._is_over.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_over.wait(), self._random.uniform(*_PAUSE_S))
                return
            target = self._random.choice([each for each in self._targets() if each[0] not in self._down])
            name, *ways = target
            told, fault = self._random.choice(ways)
            lasts_s = _LONG_S if self._random.random() < _LONG else self._random.uniform(*_LASTS_S)
            self.done[told] += 1
            self._down.add(name)
            await fault(lasts_s)
            self._down.discard(name)

    def _targets(self) -> list[tuple[str, tuple[str, Fault], tuple[str, Fault]]]:
        """Return the names of the processes, each with its kill and its freeze."""
        site, redis, broker = self._site, self._site.redis, self._site.broker
        found: list[tuple[str, tuple[str, Fault], tuple[str, Fault]]] = [
            ("RabbitMQ", (f"{_KILL} RabbitMQ", _restarted(broker)), (f"{_STOP} RabbitMQ", _still(broker.hold, broker.go_on))),
            (
                "Redis",
                (f"{_KILL} Redis", _restarted(redis)),
                (f"{_STOP} Redis", _still(lambda: redis.signal(signal.SIGSTOP), lambda: redis.signal(signal.SIGCONT))),
            ),
        ]
        for gateway in site.gateways:
            own, below = partial(_pid, gateway), partial(_tritons, gateway)
            found.append((f"gateway {gateway.state}", (f"{_KILL} a gateway", _restarted(gateway)), (f"{_STOP} a gateway", _held(own))))
            found.append((f"gateway {gateway.state}", (f"{_KILL} a Triton", _killed(below)), (f"{_STOP} a Triton", _held(below))))
        for worker in site.workers:
            own = partial(_pid, worker)
            found.append((f"worker {worker.folder}", (f"{_KILL} a worker", _restarted(worker)), (f"{_STOP} a worker", _held(own))))
        return found


class _Process(Protocol):
    """A `Gateway`, `Worker`, `Redis` or `RabbitmqServer`."""

    def kill(self) -> None: ...

    def start(self) -> None: ...


def _restarted(process: _Process) -> Fault:
    async def fault(lasts_s: float) -> None:
        process.kill()
        await asyncio.sleep(lasts_s)
        while True:  # as whoever supervises it does: one that finds its stores away ends at its start
            try:
                return await asyncio.to_thread(process.start)
            except RuntimeError:
                await asyncio.sleep(_AGAIN_S)

    return fault


def _still(hold: Callable[[], None], go_on: Callable[[], None]) -> Fault:
    async def fault(lasts_s: float) -> None:
        hold()
        try:
            await asyncio.sleep(lasts_s)
        finally:
            go_on()

    return fault


def _killed(pids: Callable[[], Sequence[int]]) -> Fault:
    async def fault(lasts_s: float) -> None:
        _signal(pids(), signal.SIGKILL)

    return fault


def _held(pids: Callable[[], Sequence[int]]) -> Fault:
    async def fault(lasts_s: float) -> None:
        held = pids()
        _signal(held, signal.SIGSTOP)
        try:
            await asyncio.sleep(lasts_s)
        finally:
            _signal(held, signal.SIGCONT)

    return fault


def _pid(process: Gateway | Worker) -> list[int]:
    return [process.pid]


def _tritons(gateway: Gateway) -> list[int]:
    return gateway.tritons() if gateway.is_running else []


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
