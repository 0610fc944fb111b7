"""Watch on one Triton that is up: notices within a second that it says nothing, and at once that it is back.

A process that is stopped, swapped out or cut off keeps its connections open, so nothing fails: requests hang
there until their deadlines. One task per Triton runs this, of `triton/supervisor` or `triton/attachment`, and
nothing else ever waits for it. What a silence means is decided elsewhere: in a fleet routing avoids the server
(`fleet/view/state`), and whoever runs the Triton replaces it after a long one.
"""

from __future__ import annotations

import asyncio
import logging
from math import inf

from control_plane.core.algorithms.silence import SilenceDetector, SilenceLimits
from control_plane.triton.ports import Liveness, LivenessProbe
from control_plane.triton.server_state import ServerSlot

_log = logging.getLogger(__name__)

_GIVE_UP_S = 1.0
"""Time after which a probe is given up and another one sent over a new connection. Longer than two misses: a
Triton that is only slow may still answer the first."""
_SLICE_S = 0.05
"""A wait is done in parts this long, each of which shows whether this process itself runs on time."""
_READ_TURNS = 4
"""Turns of the event loop after a wait: timers come before what has been received, which may be the answer."""


class LivenessWatch:
    """Failure detector of one Triton by liveness probes, every quarter of a second unless `limits` say otherwise."""

    def __init__(
        self,
        probe: LivenessProbe,
        slot: ServerSlot,
        *,
        name: str,
        gives_up_after_s: float = inf,
        believes_refusals: bool = True,
        limits: SilenceLimits | None = None,
    ) -> None:
        """`slot` is told when Triton falls silent and when it answers again; `name` is for the log. `run`
        returns when Triton has said nothing for `gives_up_after_s` in which this process itself was on time, or,
        with `believes_refusals`, once it says that it is not live. Where the time is infinite it does neither."""
        self._probe = probe
        self._slot = slot
        self._name = name
        self._gives_up_after_s = gives_up_after_s
        self._believes_refusals = believes_refusals and gives_up_after_s < inf
        self._detector = SilenceDetector(limits)
        self._unheard_s = 0.0
        """For how long it was listened to since it last answered; what this process was late for is left out."""

    async def run(self) -> None:
        """Watch until cancelled, or as `gives_up_after_s` says."""
        loop = asyncio.get_running_loop()
        self._detector.heard(loop.time())
        async with asyncio.TaskGroup() as tasks:
            while self._unheard_s < self._gives_up_after_s:
                asked_s = loop.time()
                asking = tasks.create_task(self._probe.ask(timeout_s=_GIVE_UP_S), name=f"liveness-{self._name}")
                while not await self._has_ended(asking):
                    pass
                if asking.result() is Liveness.LIVE:
                    self._heard(loop.time())
                elif asking.result() is Liveness.NOT_LIVE and self._believes_refusals:
                    return
                # Not at once, or a Triton that refuses to answer would be asked all the time.
                await asyncio.sleep(max(0.0, asked_s + self._detector.limits.interval_s - loop.time()))

    async def _has_ended(self, asking: asyncio.Task[Liveness]) -> bool:
        """Wait for the answer for one interval, at whose end a probe that is not answered is a miss."""
        loop, limits, late_s = asyncio.get_running_loop(), self._detector.limits, 0.0
        began_s = loop.time()
        until_s = began_s + limits.interval_s
        while not asking.done() and (now_s := loop.time()) < until_s:
            due_s = min(until_s, now_s + _SLICE_S)
            await asyncio.wait((asking,), timeout=due_s - now_s)
            late_s = max(late_s, loop.time() - due_s)
        for _ in range(_READ_TURNS):
            if asking.done():
                break
            await asyncio.sleep(0)
        if asking.done() and asking.result() is Liveness.NOT_LIVE:
            self._missed(loop.time(), late_s=0.0)
            self._unheard_s += limits.interval_s
        elif not asking.done() or asking.result() is Liveness.SILENT:
            if not asking.done():
                self._missed(loop.time(), late_s=late_s)
            if late_s <= limits.max_late_s:
                self._unheard_s += loop.time() - began_s
        return asking.done()

    def _missed(self, now_s: float, *, late_s: float) -> None:
        if self._detector.missed(late_s=late_s):
            _log.warning("Triton %s has said nothing for %.1f s", self._name, now_s - self._detector.since_s)
            self._slot.fell_silent()

    def _heard(self, now_s: float) -> None:
        since_s = self._detector.since_s
        self._unheard_s = 0.0
        if self._detector.heard(now_s):
            _log.info("Triton %s answers again, after %.1f s", self._name, now_s - since_s)
            self._slot.heard()
