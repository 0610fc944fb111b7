"""A supervisor in virtual time, over processes and clients that are fakes."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

from control_plane.core.algorithms.backoff import RestartLimits
from control_plane.core.endpoints import TritonEndpoints
from control_plane.core.errors import StartupError
from control_plane.triton.ports import Liveness, Upstream
from control_plane.triton.supervisor import Supervisor

LIMITS = RestartLimits(first_delay_s=0.2, max_delay_s=30.0, settled_after_s=60.0)
SOURCE = "control_plane.triton.supervisor"


class InstantSelector(selectors.SelectSelector):
    """Selector that advances the loop's clock instead of waiting."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout:
            self.now_s += timeout
        return super().select(0)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine on a loop in virtual time, which passes at once."""

    def make_loop() -> asyncio.AbstractEventLoop:
        selector = InstantSelector()
        loop = asyncio.SelectorEventLoop(selector)
        loop.time = lambda: selector.now_s  # type: ignore[method-assign]
        return loop

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(scenario())


def now_s() -> float:
    return asyncio.get_running_loop().time()


class FakeProcess:
    """Fake Triton process; the test decides its end by `end`."""

    endpoints = TritonEndpoints(host="127.0.0.1", http_port=1, grpc_port=2, metrics_port=3)

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._ended = asyncio.Event()
        self._how = ""

    def end(self, how: str) -> None:
        if not self._ended.is_set():
            self._how = how
            self._ended.set()

    async def wait(self) -> str:
        await self._ended.wait()
        return self._how

    def held_memory(self) -> None:
        return None

    def work_done(self) -> int | None:
        return self._lab.work()

    async def stop(self, *, grace_s: float) -> None:
        self._lab.events.append(f"stop within {grace_s:g} s")
        await asyncio.sleep(self._lab.stop_takes_s)
        self.end("Triton ended with exit status 0; the end of the log:\nlast line")
        self._lab.events.append("gone")


class FakeUpstream:
    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.control = self.liveness = self

    async def is_live(self) -> bool:
        return now_s() >= self._lab.started_s[-1] + self._lab.live_after_s

    async def is_serving(self) -> bool:
        return now_s() >= self._lab.started_s[-1] + self._lab.live_after_s + self._lab.http_opens_after_s

    async def ask(self, *, timeout_s: float) -> Liveness:
        if not self._lab.is_frozen:
            return Liveness.LIVE
        await asyncio.sleep(timeout_s)
        return Liveness.SILENT

    async def close(self) -> None:
        await asyncio.sleep(self._lab.close_takes_s)
        self._lab.events.append("closed")


class Lab:
    """Fakes of all that is around a supervisor, with a record of the order of events."""

    again = "restarted"

    def __init__(self) -> None:
        self.events: list[str] = []
        self.started_s: list[float] = []
        self.lives: list[FakeProcess] = []
        self.live_after_s = 1.0
        self.http_opens_after_s = 0.0
        self.start_takes_s = 0.0
        self.close_takes_s = 0.0
        self.stop_takes_s = 0.0
        self.is_frozen = False
        self.silence_timeout_s = self.stall_timeout_s = inf
        self.work: Callable[[], int | None] = lambda: None
        self.fail_to_start: list[StartupError] = []
        self.restore: Callable[[Upstream], Coroutine[Any, Any, None]] = self._restore
        self.restore_takes_s = 0.5

    def supervisor(self) -> Supervisor:
        return Supervisor(
            launcher=self,
            connect=lambda endpoints: FakeUpstream(self),  # type: ignore[arg-type, return-value]
            servers=self,
            restore=self._restored,
            start_timeout_s=10.0,
            limits=LIMITS,
            silence_timeout_s=self.silence_timeout_s,
            stall_timeout_s=self.stall_timeout_s,
        )

    async def start(self) -> FakeProcess:
        self.started_s.append(now_s())
        if self.fail_to_start:
            raise self.fail_to_start.pop()
        await asyncio.sleep(self.start_takes_s)
        self.lives.append(FakeProcess(self))
        self.events.append("started")
        return self.lives[-1]

    def up(self, upstream: Upstream) -> None:
        self.events.append("up")

    def down(self, reason: str) -> None:
        self.events.append(f"down: {reason}")

    def lost(self, reason: str) -> None:
        self.events.append(f"lost: {reason}")

    def fell_silent(self) -> None:
        self.events.append("silent")

    def heard(self) -> None:
        self.events.append("heard")

    async def _restored(self, upstream: Upstream) -> None:
        await self.restore(upstream)

    async def _restore(self, upstream: Upstream) -> None:
        await asyncio.sleep(self.restore_takes_s)
        self.events.append("restored")

    async def until(self, event: str, times: int = 1) -> None:
        async with asyncio.timeout(1000):
            while self.events.count(event) < times:
                await asyncio.sleep(0.01)


async def cancelled_after(lab: Lab, until: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """Run a supervisor, cancel it when `until` returns, and return how long it then took to end."""
    async with asyncio.TaskGroup() as group:
        running = group.create_task(lab.supervisor().run())
        await until()
        cancelled_s = now_s()
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
    return now_s() - cancelled_s


RESTARTING = "down: Triton has ended and is being restarted"
LOST = "lost: ended and is being restarted"
ORDERLY_END = ["down: the gateway is stopping", "closed", "stop within 4 s", "gone"]
