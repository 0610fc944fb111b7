"""What drills do to a Redis and to disks."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

from perf.chaos import models
from perf.chaos.callers import Asked
from perf.chaos.scene import Scene
from perf.chaos.sites import small_disk
from perf.chaos.sites.durable_redis import Redis

_OUTAGE_S = 6.0
_FULL_S = 6.0
_SLEEP = "0.05"
_COLD_DEADLINE_S = 30.0


async def kill_redis(scene: Scene) -> None:
    """And start it again with what it has written."""
    redis = _redis(scene)
    scene.begin()
    redis.kill()
    await scene.hold(_OUTAGE_S)
    await asyncio.to_thread(redis.start)


async def freeze_redis(scene: Scene) -> None:
    redis = _redis(scene)
    scene.begin()
    redis.signal(signal.SIGSTOP)
    try:
        await scene.hold(_OUTAGE_S)
    finally:
        redis.signal(signal.SIGCONT)


async def empty_redis(scene: Scene) -> None:
    """As whoever takes it for a cache does. What was in it is put back afterwards, so that the next drill finds its keys."""
    redis = _redis(scene)
    saved = await asyncio.to_thread(redis.dump)
    scene.begin()
    redis.call("FLUSHALL")
    try:
        await scene.hold(_OUTAGE_S)
    finally:
        await asyncio.to_thread(redis.restore, saved)


async def slow_redis(scene: Scene) -> None:
    """It sleeps 50 ms before every answer, or nearly so."""
    redis = _redis(scene)
    scene.begin()
    until_s = time.monotonic() + _OUTAGE_S * scene.scale
    while time.monotonic() < until_s:
        await asyncio.to_thread(redis.call, "DEBUG", "SLEEP", _SLEEP)


async def fill_the_disk(scene: Scene) -> None:
    """While models are asked for that have to be placed or fetched there."""
    with small_disk.filled(_disk(scene)):
        scene.begin()
        for model in models.COLD[:3]:
            await scene.ask(Asked("who asks for a cold one", model, deadline_s=_COLD_DEADLINE_S))
        await scene.hold(_FULL_S)
    for model in models.COLD[:3]:
        await scene.ask(Asked("who asks when there is room again", model, deadline_s=_COLD_DEADLINE_S))


def _redis(scene: Scene) -> Redis:
    assert scene.site.redis is not None, "this site has no Redis"
    return scene.site.redis


def _disk(scene: Scene) -> Path:
    assert scene.site.disk is not None, "this site has no disk of its own"
    return scene.site.disk
