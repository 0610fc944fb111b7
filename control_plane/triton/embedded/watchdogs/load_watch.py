"""Watchdog of the loads of an embedded Triton: makes sure that every load ends, and explains failures
(`models/ports.LoadWatch`).

Triton (24.10) has no deadline for loads, and waits for ever for a Python stub that died before its instance
was initialized. So while a load is under way the stubs are observed ten times a second. For one that has died
an answer is given (abandoned_load.py); one that takes too long is killed. Either way Triton gives the load up
by itself. The explanation of a failure is Triton's answer, what its log adds, and how the stub ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL
from typing import Protocol

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, ModelLoadFailed
from control_plane.triton.embedded.account import Account
from control_plane.triton.embedded.watchdogs import abandoned_load
from control_plane.triton.embedded.watchdogs.stubs import SHARED_MEMORY, TICK_S, Stub, StubObservation, Stubs, now_s
from control_plane.triton.triton_log import StubEnd, load_failure, read_lines

_log = logging.getLogger(__name__)

_EVERY_S = 0.1
_DESERTED_S = 0.15
"""Time before a region counts as abandoned: an observation is no atomic snapshot, so a single one may be
wrong.
"""

_LONGEST_PAUSE_S = 8.0
"""Longest pause between two tries to answer in a region: that of a loaded model whose stub has died stays,
and needs no answer.
"""

_ANSWER_TIMEOUT_S = 10.0
"""Time limit of the program that answers. It takes a fifth of a second, but models' code may have left
anything in the region.
"""

_TO_END_S = 10.0
"""Time for Triton to give up a load whose stub was killed: it takes a second, and more on a machine that
swaps.
"""


@dataclass(slots=True, eq=False)
class _Load:
    """Load that is under way."""

    models: Sequence[str]
    """The model itself, then an ensemble's steps."""
    log_from: int
    """Size of the log at the start of the load."""
    began_s: float
    """Start on the clock `stubs.now_s`: stubs of what was loaded before, maybe of the same model, are
    older.
    """
    is_alone: bool
    is_overdue: bool = False


@dataclass(slots=True)
class _AbandonedRegion:
    """Region whose stub is gone, with the time of the next try to answer."""

    try_from_s: float
    pause_s: float = _DESERTED_S


class LoadLog(Protocol):
    """Triton's log, as far as it explains loads that failed: `log_file.LogFile`, where there is one."""

    def end(self) -> int:
        """Return the present end, a position for `since`."""

    def since(self, position: int) -> bytes:
        """Return what was written from a position on."""


Answer = Callable[[str], Awaitable[bool]]
"""Answers Triton in a region in place of a stub that is gone; returns False if Triton does not wait there."""


@dataclass(slots=True)
class LoadWatch:
    """Watchdog of the loads of one Triton process."""

    log: LoadLog
    stubs: Stubs
    answer: Answer
    ended: int = 0
    """Number of loads that have ended, however they did."""
    started: dict[int, Stub] = field(default_factory=dict)
    """Stubs that loads have started which succeeded, for `stub_watch` to take over: one may die before that
    searches for it."""
    served: set[str] = field(default_factory=set)
    """Regions of stubs whose models were loaded. Nothing is answered there: Triton may wait for the dead stub with
    a request, and takes an answer to that for a pointer, which ends it with a signal 11."""
    _loads: list[_Load] = field(default_factory=list)
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _looked_s: float = 0.0
    _seen: StubObservation = field(default_factory=lambda: StubObservation({}, {}, set()))
    _known: dict[int, Stub] = field(default_factory=dict)
    """Stubs that were seen alive and still exist, if only as zombies."""
    _ends: dict[int, StubEnd] = field(default_factory=dict)
    """Ends of stubs while a load was under way, by process id."""
    _deserted: dict[str, _AbandonedRegion] = field(default_factory=dict)

    async def carry_out(self, models: Sequence[str], load: Callable[[float], Awaitable[None]], *, timeout_s: float) -> None:
        """Carry out a load as `models/ports.LoadWatch.carry_out` says."""
        # No await before the load: the caller has just checked that this process may load, which an await
        # could make untrue.
        watched = _Load(models, self.log.end(), now_s(), is_alone=not self._loads)
        for other in self._loads:
            other.is_alone = False
        self._loads.append(watched)
        failure: Exception | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch(watched, timeout_s), name=f"watch-load-of-{models[0]}")
                try:
                    await load(timeout_s + _TO_END_S)
                except Exception as exc:  # kept: raised here it would leave the task group as an exception group
                    failure = exc
                finally:
                    watching.cancel()
            if failure is not None:
                raise await self._explained(watched, failure, timeout_s)
            # Before anybody can use the model: what has not been seen alive cannot be told whose it was.
            self._known |= (await asyncio.to_thread(self.stubs.observe)).living
            started = {pid: stub for pid, stub in self._known.items() if _is_started_by(watched, stub)}
            self.started |= started
            self.served |= {stub.region for stub in started.values()}
        finally:
            self._loads.remove(watched)
            self.ended += 1
            if not self._loads:
                self._forget()

    def is_starting(self, stub: Stub) -> bool:
        """Whether a load that is under way has started this stub."""
        return any(_is_started_by(load, stub) for load in self._loads)

    async def _watch(self, watched: _Load, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while True:
            await asyncio.sleep(_EVERY_S)
            await self._observe()
            if time.monotonic() >= deadline_s:
                watched.is_overdue = True
                self._end_stubs(watched)

    async def _observe(self) -> None:
        """Observe the stubs, unless another load under way has just done so, and answer for those that have
        died.
        """
        async with self._looking:
            if time.monotonic() - self._looked_s < _EVERY_S / 2:
                return
            self._seen = seen = await asyncio.to_thread(self.stubs.observe)
            self._looked_s = looked_s = time.monotonic()
            self._known = {pid: stub for pid, stub in self._known.items() if pid in seen.ended} | seen.living
            for pid, how in seen.ended.items():
                self._ends.setdefault(pid, StubEnd(self._known[pid].instance if pid in self._known else "", how))
            deserted = seen.abandoned - self.served
            self._deserted = {each: self._deserted.get(each, _AbandonedRegion(looked_s + _DESERTED_S)) for each in deserted}
            for region, abandoned in self._deserted.items():
                if looked_s >= abandoned.try_from_s:
                    await self._answer(region, abandoned)

    async def _answer(self, region: str, abandoned: _AbandonedRegion) -> None:
        if await self.answer(region):
            _log.info("a Python stub has died while Triton waited for it, and has been answered for")
            abandoned.pause_s = _DESERTED_S  # a load takes up to two answers, so try again at the next observation
        else:
            abandoned.try_from_s = time.monotonic() + abandoned.pause_s
            abandoned.pause_s = min(2 * abandoned.pause_s, _LONGEST_PAUSE_S)

    def _end_stubs(self, watched: _Load) -> None:
        """Kill the stubs that the load has started, and none of a model that was loaded before."""
        for pid, stub in self._seen.living.items():
            if _is_started_by(watched, stub):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    async def _explained(self, watched: _Load, failure: Exception, timeout_s: float) -> Exception:
        """Return the failure with all that is known about its reason."""
        if not isinstance(failure, ModelLoadFailed | DeadlineExceeded):
            return failure
        if watched.is_overdue or isinstance(failure, DeadlineExceeded):
            return _overdue(watched.models[0], timeout_s, has_ended=isinstance(failure, ModelLoadFailed))
        lines = read_lines(await asyncio.to_thread(self.log.since, watched.log_from))
        reason = load_failure(str(failure), watched.models, lines, ends=list(self._ends.values()), is_alone=watched.is_alone)
        return ModelLoadFailed(reason, upstream_code=failure.upstream_code)

    def _forget(self) -> None:
        self._ends.clear()
        self._known.clear()
        self._deserted.clear()


def _is_started_by(load: _Load, stub: Stub) -> bool:
    return stub.started_s >= load.began_s - TICK_S and stub.is_of(load.models)


def _overdue(model: str, timeout_s: float, *, has_ended: bool) -> ControlPlaneError:
    what = "its Python process was still at it, and has been ended" if has_ended else "Triton goes on with it"
    return DeadlineExceeded(f"model '{model}' was not loaded within {timeout_s:g} s (TIDEGATE_LOAD_TIMEOUT_S); {what}")


_PROGRAM = (sys.executable, "-I", "-S", "-c", Path(abandoned_load.__file__).read_text())
"""Program to run, given by its text and not by its path, which another user need not be able to read."""


@dataclass(frozen=True, slots=True)
class AbandonedLoadAnswerer:
    """Runner of abandoned_load.py with no more rights and environment than Triton has: models' code may have
    written anything into the region, and the program follows the pointers that it finds there.
    """

    environment: Mapping[str, str]
    account: Account | None = None
    """User that Triton runs as; None for ours."""
    program: Sequence[str] = _PROGRAM
    folder: Path = SHARED_MEMORY
    """Where Triton has its regions."""

    async def __call__(self, region: str) -> bool:
        """Answer in a region, as `Answer` says; takes a fifth of a second. After a cancellation the program
        still runs to its end.
        """
        return await asyncio.to_thread(self._run, self.folder / region)

    def _run(self, region: Path) -> bool:
        """Run the program; False if it cannot be run, does not end in time, or has not answered."""
        user = self.account
        try:
            done = subprocess.run(  # not asyncio's: uvloop starts no process as another user
                [*self.program, str(region)],
                env=dict(self.environment),
                user=None if user is None else user.uid,
                group=None if user is None else user.gid,
                extra_groups=None if user is None else user.groups,
                cwd="/",
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=DEVNULL,
                check=False,
                timeout=_ANSWER_TIMEOUT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            _log.warning("nobody can answer Triton for a Python stub that has died: %s", type(exc).__name__)
            return False
        return done.returncode == 0
