"""Three times what a model can do, in an open loop over both protocols: what is answered in time, how the rest is refused, what is left."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from perf.chaos import models
from perf.chaos.callers import CALLERS, Asked, Caller, Timeline
from perf.chaos.models import REPEATABLE_MODEL
from perf.chaos.scene import Scene
from perf.servers.processes import usage

_SERVICE_S = 0.03
_DEADLINE_S = 0.9
"""Below a second, from which on gRPC's C core rounds up to 10 ms: admission gives a full queue's next place to who has more time."""
_TIMES = 3.0
_LASTS_S = 60.0
_SETTLED_S = 4.0
"""At most, in which the load has filled what it can fill."""
_PEAK_S, _PEAK_CALLERS = 4.0, 8
_LEAVES_AFTER_S = 0.15
_AFTERWARDS_S, _AFTERWARDS_EVERY_S = 10.0, 0.15
_NORMAL_S = 0.3
"""An answer to one who asks alone: ten times what it takes, for a busy machine."""
_NORMAL_ANSWERS = 5
_MIB = 2**20
_PROTOCOLS = tuple(CALLERS)
_REFUSED = ("503", "429", "UNAVAILABLE", "RESOURCE_EXHAUSTED")

_SEED = 7

Ask = Callable[[str], Coroutine[Any, Any, None]]


def arrivals(random: Random, per_s: float, seconds: float) -> Iterator[tuple[float, str]]:
    """A Poisson process: when each request comes, in seconds from the start, and over which protocol.

    By turns at even intervals, the protocol whose client takes a few milliseconds longer would come soon before the other one and long
    after it, and so be the next more often whenever a place is free: 4 ms later it had 70 % of the answers.
    """
    at_s = random.expovariate(per_s)
    while at_s < seconds:
        yield at_s, random.choice(_PROTOCOLS)
        at_s += random.expovariate(per_s)


@dataclass(slots=True)
class _Open:
    """An open loop: requests come whatever became of those before, each on a connection that is idle."""

    scene: Scene
    timeline: Timeline = field(default_factory=Timeline)
    _idle: dict[str, list[Caller]] = field(default_factory=lambda: {protocol: [] for protocol in CALLERS})

    async def run(self, per_s: float, seconds: float, ask: Ask) -> None:
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for at_s, protocol in arrivals(Random(_SEED), per_s, seconds):
                await asyncio.sleep(max(0.0, began_s + at_s - time.monotonic()))
                tasks.create_task(ask(protocol))

    async def ask(self, protocol: str, kind: str, *, leaves_after_s: float | None = None) -> None:
        caller = self._idle[protocol].pop() if self._idle[protocol] else self.scene.caller(protocol)
        asked = Asked(kind, REPEATABLE_MODEL, _SERVICE_S, _DEADLINE_S if leaves_after_s is None else 30 * _DEADLINE_S)
        if leaves_after_s is None:
            await self.timeline.ask(caller, asked)
            self._idle[protocol].append(caller)
            return
        try:
            async with asyncio.timeout(leaves_after_s):
                await self.timeline.ask(caller, asked)
        except TimeoutError:
            await caller.close()
        else:
            self._idle[protocol].append(caller)

    async def close(self) -> None:
        for caller in (each for idle in self._idle.values() for each in idle):
            await caller.close()


async def overload(scene: Scene) -> None:
    """By callers who wait for as long as their deadline is."""
    await _overload(scene, lambda load: lambda protocol: load.ask(protocol, protocol))


async def overload_by_leavers(scene: Scene) -> None:
    """Every second caller leaves after 150 ms, thirty seconds before its deadline."""

    chance = Random(_SEED + 1)

    def ask_on(load: _Open) -> Ask:
        async def ask(protocol: str) -> None:
            leaves = chance.random() < 0.5
            await load.ask(protocol, f"leaver {protocol}" if leaves else protocol, leaves_after_s=_LEAVES_AFTER_S if leaves else None)

        return ask

    await _overload(scene, ask_on)


async def overload_untold(scene: Scene) -> None:
    """Each caller leaves after as long as others' deadline is, and has not said so: its deadline is thirty times as late."""
    await _overload(scene, lambda load: lambda protocol: load.ask(protocol, protocol, leaves_after_s=_DEADLINE_S))


async def _overload(scene: Scene, ask_on: Callable[[_Open], Ask]) -> None:
    peak_per_s = await _peak_per_s(scene)
    load = _Open(scene)
    seconds = _LASTS_S * scene.scale
    settled_s = min(_SETTLED_S, seconds / 4)
    scene.begin()
    held_bytes = scene.beside(_bytes_after(scene, settled_s))
    await load.run(_TIMES * peak_per_s, seconds, ask_on(load))
    ended_s = time.monotonic()
    grown_bytes = usage(scene.site.gateway.pid).rss_bytes - held_bytes.result()
    normal_after_s = await _normal_after_s(scene, ended_s)
    await load.close()
    scene.timeline.answers += load.timeline.answers
    began_s = scene.fault_s
    in_time = [
        each for each in load.timeline.answers if not each.wrong and each.kind in CALLERS and each.ended_s - each.began_s <= _DEADLINE_S
    ]
    counted = sum(settled_s <= each.ended_s - began_s <= seconds for each in in_time)
    refused_s = [each.ended_s - each.began_s for each in load.timeline.answers if each.wrong.startswith(_REFUSED)]
    of_all = [each for each in load.timeline.answers if each.kind in CALLERS]
    scene.figures |= {
        "asked": len(of_all),
        "failed": sum(bool(each.wrong) and not each.wrong.startswith(_REFUSED) for each in of_all),
        "goodput": counted / (seconds - settled_s) / peak_per_s,
        "http_part": sum(each.kind == "http" for each in in_time) / max(1, len(in_time)),
        "refused_p90_ms": statistics.quantiles(refused_s, n=10)[-1] * 1000 if len(refused_s) > 1 else 0.0,
        "grown_mib": grown_bytes / _MIB,
        "normal_after_s": normal_after_s,
    }


async def _peak_per_s(scene: Scene) -> float:
    """What eight callers have answered that each send one request after the other."""
    load = _Open(scene)
    until_s = time.monotonic() + _PEAK_S

    async def caller(protocol: str) -> None:
        while time.monotonic() < until_s:
            await load.ask(protocol, protocol)

    began_s = time.monotonic()
    await asyncio.gather(*(caller(_PROTOCOLS[number % 2]) for number in range(_PEAK_CALLERS)))
    per_s = sum(not each.wrong for each in load.timeline.answers) / (time.monotonic() - began_s)
    await load.close()
    return per_s


async def _bytes_after(scene: Scene, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return usage(scene.site.gateway.pid).rss_bytes


async def _normal_after_s(scene: Scene, ended_s: float) -> float:
    """From the end of the load until one who asks alone is answered as before, several times in a row."""
    caller, timeline, in_a_row, since_s = scene.caller("http"), Timeline(), 0, ended_s
    while in_a_row < _NORMAL_ANSWERS and time.monotonic() - ended_s < _AFTERWARDS_S:
        answer = await timeline.ask(caller, Asked("alone", REPEATABLE_MODEL, models.WORK_S, 10 * _DEADLINE_S))
        is_normal = not answer.wrong and answer.ended_s - answer.began_s <= _NORMAL_S
        in_a_row, since_s = (in_a_row + 1, since_s) if is_normal else (0, time.monotonic())
        await asyncio.sleep(_AFTERWARDS_EVERY_S)
    await caller.close()
    return since_s - ended_s
