"""Sees to it that every load of an embedded Triton ends, and says why one has failed: `models/ports.LoadWatch`.

Triton (24.10) has no deadline for loads, and waits for ever for a Python stub that has died before it has begun
an instance. So while anything loads its stubs are looked at ten times a second: one that has died is answered
for (abandoned_load.py), one that takes too long is ended, and either way Triton gives the load up by itself. Why
it failed is Triton's answer, what its log says beyond that, and how the stub ended.
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

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, ModelLoadFailed
from control_plane.triton.embedded import abandoned_load
from control_plane.triton.embedded.account import Account
from control_plane.triton.embedded.log_file import LogFile
from control_plane.triton.embedded.stubs import SHARED_MEMORY, TICK_S, Seen, Stub, Stubs, now_s
from control_plane.triton.triton_log import StubEnd, load_failure, read_lines

_log = logging.getLogger(__name__)

_EVERY_S = 0.1
_DESERTED_S = 0.15
"""Before a region counts as nobody's: a look is no snapshot."""

_LONGEST_PAUSE_S = 8.0
"""Between two tries to answer in a region: one of a model that is loaded, and whose stub has died since, stays and needs no answer."""

_ANSWER_TIMEOUT_S = 10.0
"""For a program that takes a fifth of a second, on whatever models' code has left in the region."""

_TO_END_S = 10.0
"""For Triton to give a load up whose stub has been ended: one second, and more on a machine that swaps."""


@dataclass(slots=True, eq=False)
class _Load:
    models: Sequence[str]
    """The model itself first, then an ensemble's steps."""
    log_from: int
    began_s: float
    """On `stubs.now_s`: stubs of what was loaded before, maybe of the same model, are older."""
    is_alone: bool
    is_overdue: bool = False


@dataclass(slots=True)
class _Deserted:
    """A region that is nobody's."""

    try_from_s: float
    pause_s: float = _DESERTED_S


Answer = Callable[[str], Awaitable[bool]]
"""Has Triton go on where it waits in this region for a stub that is gone; False: it does not wait there."""


@dataclass(slots=True)
class LoadWatch:
    """Watches the loads of one Triton process."""

    log: LogFile
    stubs: Stubs
    answer: Answer
    _loads: list[_Load] = field(default_factory=list)
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _looked_s: float = 0.0
    _seen: Seen = field(default_factory=lambda: Seen({}, {}, set()))
    _known: dict[int, Stub] = field(default_factory=dict)
    """Stubs that were seen living, and have not gone."""
    _ends: dict[int, StubEnd] = field(default_factory=dict)
    """Of stubs that ended while something was loading."""
    _deserted: dict[str, _Deserted] = field(default_factory=dict)

    async def carry_out(self, models: Sequence[str], load: Callable[[float], Awaitable[None]], *, timeout_s: float) -> None:
        """See `models/ports.LoadWatch.carry_out`."""
        # Nothing is awaited before the load: who may load has just been asked.
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
                except Exception as exc:  # raised in the group, it would come out as a group
                    failure = exc
                finally:
                    watching.cancel()
            if failure is not None:
                raise await self._explained(watched, failure, timeout_s)
        finally:
            self._loads.remove(watched)
            if not self._loads:
                self._forget()

    async def _watch(self, watched: _Load, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while True:
            await asyncio.sleep(_EVERY_S)
            await self._look()
            if time.monotonic() >= deadline_s:
                watched.is_overdue = True
                self._end_stubs(watched)

    async def _look(self) -> None:
        """All loads that are under way share what is seen."""
        async with self._looking:
            if time.monotonic() - self._looked_s < _EVERY_S / 2:
                return
            self._seen = seen = await asyncio.to_thread(self.stubs.look)
            self._looked_s = looked_s = time.monotonic()
            self._known = {pid: stub for pid, stub in self._known.items() if pid in seen.ended} | seen.living
            for pid, how in seen.ended.items():
                self._ends.setdefault(pid, StubEnd(self._known[pid].instance if pid in self._known else "", how))
            self._deserted = {each: self._deserted.get(each, _Deserted(looked_s + _DESERTED_S)) for each in seen.deserted}
            for region, deserted in self._deserted.items():
                if looked_s >= deserted.try_from_s:
                    await self._answer(region, deserted)

    async def _answer(self, region: str, deserted: _Deserted) -> None:
        if await self.answer(region):
            _log.info("a Python stub has died while Triton waited for it, and has been answered for")
            deserted.pause_s = _DESERTED_S  # and it may wait once more at the next look
        else:
            deserted.try_from_s = time.monotonic() + deserted.pause_s
            deserted.pause_s = min(2 * deserted.pause_s, _LONGEST_PAUSE_S)

    def _end_stubs(self, watched: _Load) -> None:
        for pid, stub in self._seen.living.items():
            if stub.started_s >= watched.began_s - TICK_S and stub.is_of(watched.models):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    async def _explained(self, watched: _Load, failure: Exception, timeout_s: float) -> Exception:
        """With all that is known of why."""
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


def _overdue(model: str, timeout_s: float, *, has_ended: bool) -> ControlPlaneError:
    what = "its Python process was still at it, and has been ended" if has_ended else "Triton goes on with it"
    return DeadlineExceeded(f"model '{model}' was not loaded within {timeout_s:g} s (TIDEGATE_LOAD_TIMEOUT_S); {what}")


_PROGRAM = (sys.executable, "-I", "-S", "-c", Path(abandoned_load.__file__).read_text())
"""By its text: another user need not be able to read where we are installed."""


@dataclass(frozen=True, slots=True)
class AnswerAsTriton:
    """Runner of abandoned_load.py with no more rights and no more environment than Triton has: what is in a region models' code may have
    written, and the program follows the pointers of the lock that it finds there."""

    environment: Mapping[str, str]
    account: Account | None = None
    """The user as whom Triton runs; None: ours."""
    program: Sequence[str] = _PROGRAM

    async def __call__(self, region: str) -> bool:
        """See `Answer`; it takes a fifth of a second, and where it is cancelled the program runs on to its end."""
        return await asyncio.to_thread(self._run, SHARED_MEMORY / region)

    def _run(self, region: Path) -> bool:
        user = self.account
        try:
            done = subprocess.run(  # uvloop's own starts nothing as another user
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
