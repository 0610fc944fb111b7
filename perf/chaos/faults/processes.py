"""What drills do to the processes of a site, and what they ask of its models."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress

from control_plane.core.errors import ControlPlaneError
from perf.chaos import models
from perf.chaos.answers import REPEATABLE, Answer
from perf.chaos.callers import Asked
from perf.chaos.faults.flood import flood_for
from perf.chaos.scene import NotCarriedOut, Scene
from perf.chaos.sites.gateways import Gateway
from perf.chaos.sites.sites import LOAD_TIMEOUT_S, LOUD
from perf.servers.yielding import yielding

_FROZEN_S = 5.0
_AWAY_S = 5.0
"""At most, until requests go to another region: callers that it has no idle room for wait all the while, not beyond their deadlines."""
_GUESTS = 5
"""Of them, before anything is done to that region."""
_WEDGED_S = 12.0
_HUNG_S = 30.0
"""At most, until a gateway ends a process that hangs."""
_BALANCER_S = 0.5
_STOP_S = 60.0
_SENT = 8
_CROWD = 200
_COLD_DEADLINE_S = 60.0
_FLOOD_S = 6.0


@contextmanager
def _still(pid: int) -> Iterator[None]:
    """SIGSTOP, and SIGCONT if it is still there."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def _kill(scene: Scene, pids: list[int]) -> None:
    if not pids:
        raise NotCarriedOut("there is no such process")
    scene.begin()
    os.kill(pids[0], signal.SIGKILL)


async def _freeze(scene: Scene, pids: list[int], seconds: float = _FROZEN_S) -> None:
    if not pids:
        raise NotCarriedOut("there is no such process")
    scene.begin()
    with _still(pids[0]):
        await scene.hold(seconds)


async def kill_a_triton(scene: Scene) -> None:
    await _kill(scene, scene.site.hosts[0].tritons())


async def freeze_a_triton(scene: Scene) -> None:
    await _freeze(scene, scene.site.hosts[0].tritons())


async def kill_a_node(scene: Scene) -> None:
    """And with it its Triton."""
    await _kill_and_start(scene, scene.site.tritons[0])


async def freeze_a_node(scene: Scene) -> None:
    await _freeze(scene, [scene.site.tritons[0].pid])


async def hold_up_the_way_to_a_node(scene: Scene) -> None:
    """Nothing is closed: neither side is told."""
    scene.begin()
    scene.site.ways[0].hold_up()
    try:
        await scene.hold(_FROZEN_S)
    finally:
        scene.site.ways[0].let_through()


async def kill_a_stub(scene: Scene) -> None:
    await _kill(scene, scene.site.hosts[0].stubs(models.REPEATABLE_MODEL))


async def kill_a_text_stub(scene: Scene) -> None:
    await _kill(scene, scene.site.hosts[0].stubs(models.TEXT_MODEL))


async def kill_a_generative_stub(scene: Scene) -> None:
    await _kill(scene, scene.site.hosts[0].stubs(models.WRITER))


async def freeze_a_generative_stub(scene: Scene) -> None:
    await _freeze(scene, scene.site.hosts[0].stubs(models.WRITER), _WEDGED_S)


async def freeze_a_stub(scene: Scene) -> None:
    await _freeze(scene, scene.site.gateway.stubs(models.REPEATABLE_MODEL), _WEDGED_S)


async def freeze_a_stub_until_it_is_ended(scene: Scene) -> None:
    """By the gateway, for which it hangs: one that goes on by itself is another matter."""
    gateway = scene.site.gateway
    if not (pids := gateway.stubs(models.REPEATABLE_MODEL)):
        raise NotCarriedOut("there is no such process")
    scene.begin()
    with _still(pids[0]), suppress(TimeoutError):
        async with asyncio.timeout(_HUNG_S):
            while pids[0] in await asyncio.to_thread(gateway.stubs, models.REPEATABLE_MODEL):
                await asyncio.sleep(0.1)


async def kill_a_worker(scene: Scene) -> None:
    await _kill(scene, scene.site.gateway.workers())


async def freeze_a_worker(scene: Scene) -> None:
    await _freeze(scene, scene.site.gateway.workers())


async def _kill_and_start(scene: Scene, gateway: Gateway) -> None:
    """As whoever supervises it does."""
    scene.begin()
    gateway.kill()
    await scene.hold(1.0)
    await asyncio.to_thread(gateway.start)


async def kill_the_leader(scene: Scene) -> None:
    scene.beside(_ask_cold(scene))
    await _kill_and_start(scene, scene.site.leader())


async def freeze_the_leader(scene: Scene) -> None:
    scene.beside(_ask_cold(scene))
    await _freeze(scene, [scene.site.leader().pid], 2 * _FROZEN_S)


async def kill_a_gateway(scene: Scene) -> None:
    await _kill_and_start(scene, _other_than_leader(scene))


async def freeze_a_gateway(scene: Scene) -> None:
    await _freeze(scene, [_other_than_leader(scene).pid])


async def tell_a_gateway_to_stop(scene: Scene) -> None:
    """Before a balancer that asks every half second whether it is ready, and then sends it nothing more; and a start once it has ended."""
    gateway = _other_than_leader(scene)
    number = list(scene.site.gateways).index(gateway)
    scene.begin()
    gateway.tell_to_stop()
    while await asyncio.to_thread(gateway.is_ready):
        await asyncio.sleep(_BALANCER_S)
    scene.not_ready.add(number)
    await asyncio.to_thread(gateway.wait, _STOP_S)
    await asyncio.to_thread(gateway.start)
    scene.not_ready.discard(number)


async def kill_a_region(scene: Scene) -> None:
    async with _failing_over(scene) as region:
        scene.begin()
        region.kill()
        await scene.hold(_FROZEN_S / 2)
    await asyncio.to_thread(region.start)


async def freeze_a_region(scene: Scene) -> None:
    with ExitStack() as frozen:
        async with _failing_over(scene) as region:
            scene.begin()
            frozen.enter_context(_still(region.pid))
            await scene.hold(_FROZEN_S / 2)
        await scene.hold(_FROZEN_S / 2)


@asynccontextmanager
async def _failing_over(scene: Scene) -> AsyncIterator[Gateway]:
    """Within the block requests go to another region, since the only Triton of their own is frozen; which one it is."""
    (region,), pids = scene.site.regions, scene.site.gateway.tritons()
    if not pids:
        raise NotCarriedOut("there is no such process")
    before = await asyncio.to_thread(region.guests)
    with _still(pids[0]):
        try:
            async with asyncio.timeout(_AWAY_S):
                while await asyncio.to_thread(region.guests) < before + _GUESTS:
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise NotCarriedOut("no requests went to the other region") from None
        yield region


def _other_than_leader(scene: Scene) -> Gateway:
    leader = scene.site.leader()
    return next(each for each in scene.site.gateways if each is not leader)


async def _ask_cold(scene: Scene) -> None:
    """One cold model after the other of each gateway, so that somebody has to load."""
    for number in range(1000):
        asked = Asked("cold", models.COLD[number % 4], deadline_s=_COLD_DEADLINE_S)
        await scene.ask(asked, gateway=number % len(scene.site.gateways))


async def load_one_that_hangs(scene: Scene) -> None:
    scene.begin()
    await scene.ask(Asked("who asks for it", models.HANGS, deadline_s=3 * LOAD_TIMEOUT_S))


async def load_a_corrupt_one(scene: Scene) -> None:
    scene.begin()
    for _ in range(3):
        await scene.ask(Asked("who asks for it", models.CORRUPT))


async def have_one_loaded_that_is_corrupt(scene: Scene) -> None:
    """By an administrator, where requests load nothing."""
    scene.begin()
    for _ in range(3):
        await _load(scene, models.CORRUPT)


async def have_one_loaded_that_hangs(scene: Scene) -> None:
    scene.begin()
    await _load(scene, models.HANGS)


async def _load(scene: Scene, model: str) -> None:
    began_s, wrong = time.monotonic(), ""
    try:
        await asyncio.to_thread(scene.site.gateway.load, model)
    except ControlPlaneError as exc:
        wrong = str(exc)
    scene.timeline.answers.append(Answer("who loads it", began_s, time.monotonic(), wrong))


async def send_poison(scene: Scene) -> None:
    """One client that comes with the same again and again, over either protocol."""
    asked = Asked("who sends it", models.REPEATABLE_MODEL, models.POISON, number=0.5)
    scene.begin()
    for number in range(_SENT):
        await scene.ask(asked, protocol=("http", "grpc")[number % 2])
        await scene.hold(0.2)


async def send_what_never_ends(scene: Scene) -> None:
    scene.begin()
    for _ in range(_SENT):
        await scene.ask(Asked("who sends it", models.REPEATABLE_MODEL, models.ENDLESS, number=0.5, deadline_s=2.0))
    await scene.hold(_WEDGED_S)


async def hoard_memory(scene: Scene) -> None:
    scene.begin()
    for _ in range(2):
        await scene.ask(Asked("who asks for it", models.HOG, hoard_bytes=models.HOG_BYTES, deadline_s=_COLD_DEADLINE_S))
        await scene.hold(2.0)


async def ask_for_twenty_cold_models(scene: Scene) -> None:
    scene.begin()
    async with asyncio.TaskGroup() as crowd:
        for number in range(_CROWD):
            asked = Asked(REPEATABLE, models.COLD[number % len(models.COLD)], deadline_s=_COLD_DEADLINE_S)
            crowd.create_task(scene.ask(asked, protocol=("http", "grpc")[number % 2]))


async def flood_by_a_client(scene: Scene) -> None:
    """Of another tenant, in a process of its own."""
    address, key = scene.site.gateway.address("http"), scene.site.keys[LOUD]
    with yielding(1) as flooder:
        await asyncio.get_running_loop().run_in_executor(flooder, int)  # it has started
        scene.begin()
        await asyncio.get_running_loop().run_in_executor(flooder, flood_for, address, key, _FLOOD_S * scene.scale)
