"""Reviver of the models of one Triton: models that have lost a Python process are loaded anew, with back-off if
that happens again and again, and unloads are completed that wait for a dead process.

Without a fleet it loads, and requests wait meanwhile (`triton/under_repair`). In a fleet, whose own
`fleet/loading/dead_stubs` loads anew, it only completes unloads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf

from control_plane.concurrency.task_owner import TaskOwner
from control_plane.core.errors import ControlPlaneError
from control_plane.models.domain.revival_backoff import RevivalBackoff
from control_plane.models.model_service import ModelService
from control_plane.triton.copy_silence import UNSEEN_S, is_worked_on
from control_plane.triton.under_repair import ModelsUnderRepair

_log = logging.getLogger(__name__)

_FIRST_LOAD_S = 1.5
"""Expected time of a revival before the first one: a small Python model takes as long."""
_SMOOTHING = 0.5
_POLL_S = 0.1
_CONFIRM_S = 1.25
"""Time in which a model that is suspected to hang must have computed nothing; workers say once a second for
what they wait."""


class ModelRevivals:
    """Reviver of one Triton's models."""

    def __init__(
        self,
        models: ModelService,
        under_repair: ModelsUnderRepair | None,
        *,
        oldest_s: Callable[[str], float] = lambda model: inf,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without `under_repair`, in a fleet, nothing is loaded. `oldest_s` returns when the first request for a
        model was sent that worker processes have waited for since, `now_s` is the event loop's time."""
        self._oldest_s = oldest_s
        self._models = models
        self._under_repair = under_repair
        self._now_s = now_s
        self._tasks = TaskOwner("models cannot be loaded anew")
        self._backoff = RevivalBackoff()
        self._load_s: dict[str, float] = {}
        self._suspected: set[str] = set()
        self._fresh_s: dict[str, tuple[float, float]] = {}
        """Suspected model that has computed nothing since its load -> when it was first and last suspected."""
        self._ready_s: dict[str, dict[str, float]] = {}
        """Model that is being revived -> the models that wait for it, and when they are expected to be ready."""

    async def run(self) -> None:
        """Own the revivals under way, until cancelled."""
        await self._tasks.run()

    def stub_died(self, name: str, how: str) -> None:
        """Note that a stub of a loaded model has died, and revive the model in a task of its own."""
        self._models.note_death(name)
        self._fresh_s.pop(name, None)
        if not self._tasks.is_open or name in self._ready_s:
            return
        self._ready_s[name] = {}
        self._models.on_event("lost", name, how)
        self._tasks.create_task(self._revive(name, how), name=f"revive-{name}")

    def explain_death(self, name: str) -> None:
        """Note that a stub of the model died under a request that is refused now: that death does not count in the back-off,
        which may end sooner."""
        now_s = self._now_s()
        if self._backoff.explain(name, now_s) and name in self._ready_s:
            soonest_s = now_s + self._backoff.delay_s(name, now_s) + self._load_s.get(name, _FIRST_LOAD_S)
            self._ready_s[name] = {each: min(ready_s, soonest_s) for each, ready_s in self._ready_s[name].items()}
            self._show()

    def suspect(self, name: str, since_s: float) -> None:
        """Note that the model seems to hang: callers got no answer since then. If Triton itself says that it
        computes nothing, and nobody waits for a long request, its stubs are ended, so that it is revived."""
        if self._tasks.is_open and name not in self._suspected and name not in self._ready_s:
            self._suspected.add(name)
            self._tasks.create_task(self._end_if_hung(name, since_s), name=f"suspect-{name}")

    async def _end_if_hung(self, name: str, since_s: float) -> None:
        try:
            hung = await self._hung(name)
            if hung and not is_worked_on(self._oldest_s(name), since_s, self._now_s()):
                _log.warning("model '%s' answers nobody and computes nothing; its Python process is ended", name, extra={"model": name})
                await self._models.end_stubs(hung)
        except Exception as exc:  # the root of a task
            unexpected = None if isinstance(exc, ControlPlaneError | TimeoutError) else exc
            _log.warning("it is not known whether model '%s' hangs: %s", name, exc, extra={"model": name}, exc_info=unexpected)
        finally:
            self._suspected.discard(name)

    async def _hung(self, name: str) -> list[str]:
        """Return those of the model and its steps of which Triton has computed nothing for a second."""
        before = await self._models.compute_times(name)
        await asyncio.sleep(_CONFIRM_S)
        after = await self._models.compute_times(name)
        still = [each for each, spent in after.items() if spent == before.get(each)]
        return [each for each in still if after[each].inferences or self._is_fresh_for_s(each) >= UNSEEN_S]

    def _is_fresh_for_s(self, name: str) -> float:
        """Return for how long a model has been suspected that has computed nothing since its load: its first
        request may compile or fetch something."""
        now_s = self._now_s()
        since_s, latest_s = self._fresh_s.get(name, (now_s, now_s))
        if now_s - latest_s > UNSEEN_S:
            since_s = now_s  # it was another copy then
        self._fresh_s[name] = since_s, now_s
        return now_s - since_s

    async def _revive(self, name: str, how: str) -> None:
        try:
            wanted = await self._models.needing(name) if self._under_repair is not None else []
            if wanted:
                await self._load_anew(name, wanted, how)
            else:
                await self._models.complete_unload(name)
        except Exception as exc:  # the root of a task: one model must not end the gateway
            unexpected = None if isinstance(exc, ControlPlaneError) else exc
            _log.error("model '%s' lost its Python process, and was not mended: %s", name, exc, extra={"model": name}, exc_info=unexpected)
        finally:
            del self._ready_s[name]
            self._show()

    async def _load_anew(self, name: str, wanted: list[str], how: str) -> None:
        """Load these models anew until all are there, nobody wants them, or somebody else has done it."""
        while (delay_s := self._backoff.delay_s(name, self._now_s())) >= 0.0 and self._models.is_dead(name):
            self._ready_s[name] = dict.fromkeys({name, *wanted}, self._now_s() + delay_s + self._load_s.get(name, _FIRST_LOAD_S))
            self._show()
            _log.warning("the Python process of model '%s' %s; it is loaded anew in %.0f s", name, how, delay_s, extra={"model": name})
            if delay_s and not await self._is_dead_after(name, delay_s):
                return
            began_s = self._now_s()
            self._backoff.begin(name, began_s)
            failures = await asyncio.gather(*(self._models.load(each) for each in wanted), return_exceptions=True)
            for failure in failures:
                if failure is None:
                    continue
                if not isinstance(failure, ControlPlaneError):
                    raise failure
                self._models.note_death(name)  # it is still to be loaded; `load` has logged why it failed
            if not self._models.is_dead(name):
                took_s = self._now_s() - began_s
                self._load_s[name] = took_s if name not in self._load_s else self._load_s[name] + _SMOOTHING * (took_s - self._load_s[name])
                _log.info("model '%s' was loaded anew in %.1f s", name, took_s, extra={"model": name})
                return
            wanted = await self._models.needing(name)

    async def _is_dead_after(self, name: str, delay_s: float) -> bool:
        """Wait for the back-off, for `delay_s` at most; False if somebody has loaded the model meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                while self._models.is_dead(name) and self._backoff.delay_s(name, self._now_s()):
                    await asyncio.sleep(_POLL_S)
        return self._models.is_dead(name)

    def _show(self) -> None:
        if self._under_repair is not None:
            self._under_repair.show({model: ready_s for waiting in self._ready_s.values() for model, ready_s in waiting.items()})
