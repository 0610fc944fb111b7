"""Supervisor of an embedded Triton: starts it, reports it up and down, restarts it with backoff, and stops
it.

It runs as one task of the root group. The order of a stop matters (server 24.10): first the caller drains,
then our pooled connections are closed, then Triton is told to exit, since a single idle connection holds up
its exit.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from math import inf

from control_plane.concurrency.broadcast import Broadcast
from control_plane.core.algorithms.backoff import RestartLimits, count_failures, restart_delay_s
from control_plane.core.algorithms.silence import SilenceLimits
from control_plane.core.errors import ControlPlaneError, StartupError
from control_plane.core.held_memory import HeldMemory
from control_plane.triton.http_opening import wait_for_http
from control_plane.triton.liveness_watch import LivenessWatch
from control_plane.triton.ports import Connect, TritonLauncher, TritonProcess, Upstream
from control_plane.triton.server_state import ServerSlot

_log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 0.5
"""Time limit for closing our own connections; together with the grace below it fits the four and a half seconds
that a stop may take.
"""

STOP_GRACE_S = 4.0
"""Grace before Triton is killed: it ends by itself within its exit timeout of 3 s, give or take half a
second.
"""

_MOST_EXPLAINED = 20
"""Most deaths in a row that do not count since their cause is known: a client that always finds another poison is no reason
to restart at once for ever."""

_POLL_S = 0.05
_LOOKS_FOR_A_STALL = 12
"""Times that a start must have done nothing, one after the other, before it counts as stalled. Looks are counted, not time: where
this process was stopped itself, Triton may have been, too."""
_START_ATTEMPTS = 2
"""Another process may take a port between its choice and Triton's binding it; the second attempt has other
ports.
"""


class _Ended(Exception):
    """Triton's process has ended; the message says how."""


class _Silent(Exception):
    """Triton's process is there and has said nothing for too long."""


class _Stalled(Exception):
    """Triton's process is there, is not live, and does nothing."""


class _NotLive(Exception):
    """Triton runs and does not become live."""


class Supervisor:
    """Supervisor of one embedded Triton over all its restarts."""

    def __init__(
        self,
        *,
        launcher: TritonLauncher,
        connect: Connect,
        servers: ServerSlot,
        restore: Callable[[Upstream], Awaitable[None]],
        start_timeout_s: float,
        limits: RestartLimits | None = None,
        silence: SilenceLimits | None = None,
        silence_timeout_s: float = inf,
        stall_timeout_s: float = inf,
    ) -> None:
        """`restore` loads the wanted models into a Triton that is live, before it is reported up. `silence` says how
        often it is asked whether it is live. One that has said nothing for `silence_timeout_s` is replaced, and one that
        is not live yet and has done nothing for `stall_timeout_s`."""
        self._launcher = launcher
        self._connect = connect
        self._servers = servers
        self._restore = restore
        self._start_timeout_s = start_timeout_s
        self._limits = limits or RestartLimits()
        self._silence = silence
        self._silence_timeout_s = silence_timeout_s
        self._stall_timeout_s = stall_timeout_s
        self._has_been_up = False
        self._failures = 0
        """Deaths in a row."""
        self._explained = 0
        """How many of them have a known cause."""
        self._explanation = Broadcast()
        self._process: TritonProcess | None = None

    def held_memory(self) -> HeldMemory | None:
        """Return the memory of Triton and all it started; None if unknown. Reads files."""
        return None if self._process is None else self._process.held_memory()

    def explain_death(self) -> None:
        """Note that Triton died under a request that is refused now: that death does not count in the back-off, which may end
        sooner."""
        self._explained = min(self._explained + 1, self._failures + 1)  # one may not be counted yet
        self._explanation.wake()

    async def run(self) -> None:
        """Supervise until cancelled; a cancellation ends Triton and all it started within four and a half
        seconds.

        Once Triton has been up it is restarted without limit, with growing delays.

        Raises:
            StartupError: Triton did not come up the first time; the text has the end of its log.
        """
        now_s = asyncio.get_running_loop().time
        for attempt in itertools.count(1):
            started_s = now_s()
            reason = await self._live_once()
            if not self._has_been_up and attempt >= _START_ATTEMPTS:
                raise StartupError(reason)
            self._failures = count_failures(self._failures, life_s=now_s() - started_s, limits=self._limits)
            if self._failures == 1:
                self._explained = 0
            _log.error("Triton is %s in %.1f s: %s", self._launcher.again, self._delay_s, reason)
            await self._pause()

    @property
    def _delay_s(self) -> float:
        return restart_delay_s(max(1, self._failures - min(self._explained, _MOST_EXPLAINED)), limits=self._limits)

    async def _pause(self) -> None:
        """Wait for the back-off."""
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        while (left_s := began_s + self._delay_s - now_s()) > 0.0:
            await self._explanation.wait(left_s)

    async def _live_once(self) -> str:
        """Start Triton, serve until it ends, and return how it ended.

        Raises:
            StartupError: Triton has not been up yet, and another attempt would fail as well.
        """
        try:
            process = self._process = await self._launcher.start()
            try:
                return await self._serve(process)
            except _NotLive as exc:
                await process.stop(grace_s=STOP_GRACE_S)
                raise StartupError(f"{exc}; {await process.wait()}") from None
            except (_Silent, _Stalled) as exc:
                await process.stop(grace_s=STOP_GRACE_S)
                return f"{exc}; {await process.wait()}"
            finally:
                await _stop(process)
        except ControlPlaneError as exc:
            if isinstance(exc, StartupError) and not self._has_been_up:
                raise
            return str(exc)

    async def _serve(self, process: TritonProcess) -> str:
        """Connect, restore the models, report the server up, and return how its process ended.

        Raises:
            _NotLive, _Silent, _Stalled: The process has not ended.
        """
        upstream = self._connect(process.endpoints)
        again = self._launcher.again
        reason, report = f"Triton has ended and is being {again}", self._servers.down
        try:
            await _unless_over(self._end_of_start(process), self._become_live(upstream))
            await _unless_over(self._end(process, upstream), self._restore(upstream))
            self._servers.up(upstream)
            self._has_been_up = True
            _log.info("Triton is up, gRPC at %s", process.endpoints.grpc)
            over = await self._end(process, upstream)
            reason, report = f"{str(over).partition(';')[0]} and is being {again}", self._servers.lost
            raise over
        except _Ended as exc:
            return str(exc)
        except asyncio.CancelledError:
            reason = "the gateway is stopping"
            raise
        finally:
            # Reported before the connections are closed: no request may pick an upstream that is being
            # closed.
            report(reason)
            await _close(upstream)

    async def _end(self, process: TritonProcess, upstream: Upstream) -> _Ended | _Silent:
        """Return how this life is over; until then notice whether Triton answers."""
        liveness = LivenessWatch(
            upstream.liveness,
            self._servers,
            name=str(process.endpoints.grpc),
            gives_up_after_s=self._silence_timeout_s,
            believes_refusals=False,
            limits=self._silence,
        )
        return await _end_unless(process, liveness.run()) or _Silent(
            f"Triton has said nothing for {self._silence_timeout_s:g} s (TIDEGATE_SILENCE_TIMEOUT_S)"
        )

    async def _end_of_start(self, process: TritonProcess) -> _Ended | _Stalled:
        """Return how a life is over that is not live yet; until then notice whether it does anything."""
        return await _end_unless(process, self._stall(process)) or _Stalled(
            f"Triton was not live and did nothing for {self._stall_timeout_s:g} s: it took no CPU time, read nothing and logged nothing "
            "(TIDEGATE_START_STALL_TIMEOUT_S)"
        )

    async def _stall(self, process: TritonProcess) -> None:
        """Return once Triton has done nothing for too long."""
        if self._stall_timeout_s == inf:
            await asyncio.get_running_loop().create_future()
        before, looks = None, 0
        while looks < _LOOKS_FOR_A_STALL:
            await asyncio.sleep(self._stall_timeout_s / _LOOKS_FOR_A_STALL)
            done = await asyncio.to_thread(process.work_done)
            looks = looks + 1 if done is not None and done == before else 0
            before = done

    async def _become_live(self, upstream: Upstream) -> None:
        try:
            async with asyncio.timeout(self._start_timeout_s):
                while not await upstream.control.is_live():
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise _NotLive(f"Triton was not live within {self._start_timeout_s:g} s (TIDEGATE_START_TIMEOUT_S)") from None
        await wait_for_http(upstream)


async def _end(process: TritonProcess) -> _Ended:
    return _Ended(await process.wait())


async def _end_unless(process: TritonProcess, noticed: Coroutine[None, None, None]) -> _Ended | None:
    """Return how the process has ended; None where `noticed` has returned before."""
    async with asyncio.TaskGroup() as tasks:
        ended = tasks.create_task(_end(process), name="triton-end")
        watch = tasks.create_task(noticed, name="triton-watch")
        await asyncio.wait((ended, watch), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        watch.cancel()
    return None if ended.cancelled() else ended.result()


async def _unless_over(end: Coroutine[None, None, _Ended | _Silent | _Stalled], work: Awaitable[None]) -> None:
    """Await `work`; if `end` returns first, cancel `work` and raise what it has returned."""
    failures: list[Exception] = []

    async def contained() -> None:
        # Kept here, since a task group would wrap the error in an exception group.
        try:
            await work
        except (ControlPlaneError, _NotLive) as exc:
            failures.append(exc)

    async with asyncio.TaskGroup() as group:
        tasks = over, working = group.create_task(end), group.create_task(contained())
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        working.cancel()
    if not over.cancelled():
        raise over.result()
    if failures:
        raise failures[0]


async def _stop(process: TritonProcess) -> None:
    try:
        await process.stop(grace_s=STOP_GRACE_S)
    except asyncio.CancelledError:
        # Cancelled while stopping: wait for the end all the same, within the same grace, so that no process
        # is left behind.
        await process.stop(grace_s=STOP_GRACE_S)
        raise


async def _close(upstream: Upstream) -> None:
    try:
        # Not asyncio.timeout: in a task that is being cancelled, which this one may be, that of Python before
        # 3.11.3 raises CancelledError at its end (gh-102780).
        await asyncio.wait_for(upstream.close(), CLOSE_TIMEOUT_S)
    except TimeoutError:
        _log.warning("connections to Triton did not close within %.1f s", CLOSE_TIMEOUT_S)
