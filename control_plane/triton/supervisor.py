"""Keeps an embedded Triton running: starts it, reports it up and down, starts it again, and ends it.

Runs as one task of the root group. The order at the end matters (server 24.10): the caller has drained, then our
pooled connections close, then Triton is told to exit, since one idle connection holds up its exit.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine

from control_plane.core.backoff import RestartLimits, count_failures, restart_delay_s
from control_plane.core.errors import ControlPlaneError, StartupError
from control_plane.triton.ports import Connect, TritonLauncher, TritonProcess, Upstream
from control_plane.triton.servers import Place

_log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 1.0
"""For closing our own connections; with the next, under the five seconds that a stop may spend on Triton."""

STOP_GRACE_S = 4.0
"""Triton ends by itself within its exit timeout of 3 s, give or take half a second; then it is killed."""

_POLL_S = 0.05
_START_ATTEMPTS = 2
"""Another process may take a port between its choice and Triton's binding it; the second attempt has other ports."""


class _Ended(Exception):
    """Triton's process has ended; the text says how."""


class _NotLive(Exception):
    """Triton runs, and does not become live."""


class Supervisor:
    """One Triton, over all its lives."""

    def __init__(
        self,
        *,
        launcher: TritonLauncher,
        connect: Connect,
        servers: Place,
        restore: Callable[[Upstream], Awaitable[None]],
        start_timeout_s: float,
        limits: RestartLimits | None = None,
    ) -> None:
        """`restore` loads the wanted models into a Triton that is live, before it is reported up."""
        self._launcher = launcher
        self._connect = connect
        self._servers = servers
        self._restore = restore
        self._start_timeout_s = start_timeout_s
        self._limits = limits or RestartLimits()
        self._has_been_up = False
        self._process: TritonProcess | None = None

    def resident_bytes(self) -> int | None:
        """What Triton and all it started hold in main memory now; None where nobody can say. Reads files."""
        return None if self._process is None else self._process.resident_bytes()

    async def run(self) -> None:
        """Supervise until cancelled; cancelling ends Triton and all it started, within five seconds.

        Raises:
            StartupError: Triton did not come up at all; the text holds the end of its log. Once it has been up, it is
                started again for ever, with a growing delay.
        """
        now_s = asyncio.get_running_loop().time
        failures = 0
        for attempt in itertools.count(1):
            started_s = now_s()
            reason = await self._live_once()
            if not self._has_been_up and attempt >= _START_ATTEMPTS:
                raise StartupError(reason)
            failures = count_failures(failures, life_s=now_s() - started_s, limits=self._limits)
            delay_s = restart_delay_s(failures, limits=self._limits)
            _log.error("Triton is restarted in %.1f s: %s", delay_s, reason)
            await asyncio.sleep(delay_s)

    async def _live_once(self) -> str:
        """One life, from start to end; returns how it ended.

        Raises:
            StartupError: Triton has not been up yet, and a second attempt would go no better.
        """
        try:
            process = self._process = await self._launcher.start()
            try:
                return await self._serve(process)
            except _NotLive as exc:
                await process.stop(grace_s=STOP_GRACE_S)
                raise StartupError(f"{exc}; {await process.wait()}") from None
            finally:
                await _stop(process)
        except ControlPlaneError as exc:
            if isinstance(exc, StartupError) and not self._has_been_up:
                raise
            return str(exc)

    async def _serve(self, process: TritonProcess) -> str:
        upstream = self._connect(process.endpoints)
        reason, report = "Triton has ended and is being restarted", self._servers.down
        try:
            await _unless_ended(process, self._bring_up(upstream))
            self._servers.up(upstream)
            self._has_been_up = True
            _log.info("Triton is up, gRPC at %s", process.endpoints.grpc)
            ended = await process.wait()
            reason, report = f"{ended.partition(';')[0]} and is being restarted", self._servers.lost
            return ended
        except _Ended as exc:
            return str(exc)
        except asyncio.CancelledError:
            reason = "the gateway is stopping"
            raise
        finally:
            report(reason)
            await _close(upstream)

    async def _bring_up(self, upstream: Upstream) -> None:
        try:
            async with asyncio.timeout(self._start_timeout_s):
                while not await upstream.control.is_live():
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise _NotLive(f"Triton was not live within {self._start_timeout_s:g} s (TIDEGATE_START_TIMEOUT_S)") from None
        await self._restore(upstream)


async def _unless_ended(process: TritonProcess, work: Coroutine[None, None, None]) -> None:
    """Await `work`; should the process end first, cancel it and raise _Ended."""
    failures: list[Exception] = []

    async def contained() -> None:
        # In a group, an error would come out as a group of one.
        try:
            await work
        except (ControlPlaneError, _NotLive) as exc:
            failures.append(exc)

    async with asyncio.TaskGroup() as group:
        tasks = ended, working = group.create_task(process.wait()), group.create_task(contained())
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        working.cancel()
    if not ended.cancelled():
        raise _Ended(ended.result())
    if failures:
        raise failures[0]


async def _stop(process: TritonProcess) -> None:
    try:
        await process.stop(grace_s=STOP_GRACE_S)
    except asyncio.CancelledError:
        # The order stands: see it through, within the same grace, so that nothing is left when we are.
        await process.stop(grace_s=STOP_GRACE_S)
        raise


async def _close(upstream: Upstream) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await upstream.close()
    except TimeoutError:
        _log.warning("connections to Triton did not close within %.1f s", CLOSE_TIMEOUT_S)
