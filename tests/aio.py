"""Runs a coroutine as a test: bounded in time, and nothing may be left of it when it returns."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import uvloop

from control_plane.models.model_service import ModelService

T = TypeVar("T")


def run(
    main: Coroutine[Any, Any, T], *, timeout_s: float = 120.0, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> T:
    """The result of `main` on a new loop (uvloop, as in production).

    Fails when a task outlives `main`, or when an exception reached the loop's handler (a protocol's callback raised, a
    task's exception was never read).
    """
    with asyncio.Runner(loop_factory=loop_factory or uvloop.new_event_loop) as runner:
        return runner.run(_checked(main, timeout_s))


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """As `run`, but waiting takes no time: the loop's clock jumps to the next timer, and the work of
    threads takes none. For code without sockets."""
    return run(main, timeout_s=1e6, loop_factory=_VirtualTimeLoop)


def hold_up(pause_s: float) -> None:
    """In virtual time: this process does not run for so long, and then finds all at once what has become due."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _VirtualTimeLoop)
    loop.now_s += pause_s


async def settle() -> None:
    """Let everything that is ready run until it waits for something else."""
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def in_background(main: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """A block beside which `main` runs, for ever or until it is cut off."""
    task = asyncio.get_running_loop().create_task(main)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def changing(models: ModelService) -> AsyncIterator[None]:
    """A block in which models can be loaded and unloaded, as while the gateway runs."""
    owner = asyncio.get_running_loop().create_task(models.run())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        owner.cancel()
        await asyncio.wait([owner])


async def _checked(main: Coroutine[Any, Any, T], timeout_s: float) -> T:
    unhandled: list[dict[str, Any]] = []

    def take(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not _is_of_an_earlier_loop(context):
            unhandled.append(context)

    asyncio.get_running_loop().set_exception_handler(take)
    async with asyncio.timeout(timeout_s):
        result = await main
    await settle()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:  # grpc.aio's own end when its poller thread says so
        _, left = await asyncio.wait(left, timeout=20.0)
    assert not left, f"tasks outlived the test: {left}"
    assert not unhandled, f"exceptions reached the loop: {unhandled}"
    return result


def _is_of_an_earlier_loop(context: dict[str, Any]) -> bool:
    """What grpc.aio, which has one poller for all loops of a process, brings for a loop that an earlier test has closed."""
    return "PollerCompletionQueue._handle_events" in context["message"] and str(context.get("exception")) == "Event loop is closed"


class _VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__(_JumpingSelector(self))
        self.now_s = 0.0
        self.set_default_executor(_AtOnce())

    def time(self) -> float:
        return self.now_s

    async def shutdown_default_executor(self) -> None:
        """Nothing is shut down: `_AtOnce` has no threads. asyncio would begin one and wait for it, in real time."""


class _AtOnce(ThreadPoolExecutor):
    """Executor that runs work at once: while a real thread worked, virtual time would pass."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as exc:
            done.set_exception(exc)
        return done


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for the next timer, moves the loop's clock to it."""

    def __init__(self, loop: _VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("the test waits for something that nothing will bring about")
        self._loop.now_s += timeout
        # One is the loop's own pipe, over which come signals alone.
        return super().select(0) if len(self.get_map()) > 1 or self._loop._signal_handlers else []
