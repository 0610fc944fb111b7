"""Graceful shutdown: not ready -> pause -> drain. A second signal cuts each of these short.

`application` uses it to stop, `worker` to drain; each closes what it owns after the drain.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Protocol


class DrainingPorts(Protocol):
    """The data ports of this process, `app/data_plane/data_plane`, or of its workers, `workers/parent/workers`."""

    def announce_drain(self) -> None:
        """Say that the gateway is not ready, and serve everything all the same."""

    async def drain(self, timeout_s: float) -> None:
        """Accept no more, and let requests in flight finish for at most `timeout_s`. A second call with less
        time cuts the first one short."""


class StopSignals:
    """The signals that stop a process: the first begins its graceful shutdown, the second cuts that short."""

    def __init__(self) -> None:
        self._first = asyncio.Event()
        self.second = asyncio.Event()
        self.is_interactive = False
        """Whether the first was SIGINT: somebody at a terminal waits for the end."""

    def follow(self) -> None:
        """Take SIGTERM and SIGINT of this process from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.receive, number)

    def receive(self, number: int) -> None:
        if self._first.is_set():
            self.second.set()
        else:
            self.is_interactive = number == signal.SIGINT
            self._first.set()

    async def wait(self) -> None:
        """Wait for the first."""
        await self._first.wait()

    async def finishes_first(self, work: Coroutine[Any, Any, None]) -> bool:
        """Carry out `work`, but cancel it when the first signal comes; returns whether it has been carried out. Raises
        what it raises, in a group."""
        async with asyncio.TaskGroup() as tasks:
            working, stopping = tasks.create_task(work, name="until-a-signal"), tasks.create_task(self.wait(), name="signal")
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            is_done = working.done()
            working.cancel()
            stopping.cancel()
        return is_done


class DrainOrder:
    """Order to a worker to drain, by its parent or a signal: the first begins the drain, each later one may shorten it."""

    def __init__(self) -> None:
        self.timeout_s = 0.0
        self.cut_short = asyncio.Event()
        self._is_given = asyncio.Event()

    def give(self, timeout_s: float) -> None:
        """Have requests in flight end within `timeout_s` from now."""
        if self._is_given.is_set():
            asyncio.get_running_loop().call_later(timeout_s, self.cut_short.set)
        else:
            self.timeout_s = timeout_s
            self._is_given.set()

    async def carry_out(self, ports: DrainingPorts) -> None:
        """Wait for the order, and drain."""
        await self._is_given.wait()
        await drain_until(ports, self.timeout_s, self.cut_short)


async def stop_serving(ports: DrainingPorts, signals: StopSignals, *, pause_s: float, drain_s: float) -> None:
    """Stop serving once the first signal has come; when this returns no request is in flight.

    The pause is for load balancers, which send requests here until they have noticed that readiness says no;
    there is none for somebody at a terminal.
    """
    ports.announce_drain()
    if not signals.is_interactive:
        with suppress(TimeoutError):
            await asyncio.wait_for(signals.second.wait(), pause_s)
    await drain_until(ports, drain_s, signals.second)


async def drain_until(ports: DrainingPorts, timeout_s: float, cut_short: asyncio.Event) -> None:
    """Drain for at most `timeout_s`, or until `cut_short` is set."""

    async def cut() -> None:
        await cut_short.wait()
        await ports.drain(0.0)

    async with asyncio.TaskGroup() as tasks:
        cutting = tasks.create_task(cut(), name="cut-drain-short")
        await ports.drain(timeout_s)
        cutting.cancel()
