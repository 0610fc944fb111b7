"""One drill, carried out: callers ask, something is done, they go on until all is as before, and what they saw is counted."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from perf.chaos.answers import (
    CHAT_STREAM,
    GENERATE_STREAM,
    HARMLESS,
    MODEL_STREAM,
    ONCE,
    REPEATABLE,
    STREAMS,
    Answer,
    counted,
    have_all_answered,
    last_failure_s,
    said,
    streamed,
)
from perf.chaos.callers import CALLERS, DEADLINE_S, Asked, Caller, Either, EmbeddingsCaller, GrpcCaller, HttpCaller, Timeline, keep_asking
from perf.chaos.models import ONCE_MODEL, REPEATABLE_MODEL, TEXT_MODEL, WRITER
from perf.chaos.run import Run
from perf.chaos.sites.sites import QUIET, Site
from perf.chaos.stream_callers import ChatCaller, ChatStreamCaller, DecoupledStreamCaller, GenerateStreamCaller, ModelStreamCaller

_CALLERS: Mapping[str, type[HttpCaller | GrpcCaller]] = {
    "http": HttpCaller,
    "grpc": GrpcCaller,
    "embeddings": EmbeddingsCaller,
    "chat": ChatCaller,
    "model on a stream": ModelStreamCaller,
    CHAT_STREAM: ChatStreamCaller,
    GENERATE_STREAM: GenerateStreamCaller,
    MODEL_STREAM: DecoupledStreamCaller,
}
_WAYS = [
    *((protocol, kind, model) for protocol in CALLERS for kind, model in ((REPEATABLE, REPEATABLE_MODEL), (ONCE, ONCE_MODEL))),
    *(("embeddings", REPEATABLE, TEXT_MODEL), ("chat", REPEATABLE, WRITER), ("model on a stream", REPEATABLE, REPEATABLE_MODEL)),
    *((stream, stream, WRITER) for stream in STREAMS),
]
"""How the harmless callers ask, their kind and their model."""
_BEFORE_S = 1.0
_ANSWERS_BEFORE = 10
"""Of each kind, before anything is done."""
_START_S = 60.0
_REST_S = 2.0
"""Without a failure, until a drill is over."""
_WHOLE_S = 40.0
"""At most, until all is as before."""
_LOOK_S = 0.2


class NotCarriedOut(RuntimeError):
    """The callers were not well before anything was done, or it could not be done."""


@dataclass(slots=True)
class Scene:
    """What the one who does it has at hand."""

    site: Site
    scale: float
    """Of all that lasts, so that a test need not last as long."""
    deadline_s: float = DEADLINE_S
    timeline: Timeline = field(default_factory=Timeline)
    figures: dict[str, float] = field(default_factory=dict)
    """Of `Run`, where a drill measures more than its callers' answers."""
    fault_s: float = math.inf
    tasks: asyncio.TaskGroup | None = None
    started: list[asyncio.Task[Any]] = field(default_factory=list)
    not_ready: set[int] = field(default_factory=set)
    """Gateways that a balancer knows not to be ready."""

    async def hold(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self.scale)

    def begin(self) -> None:
        """From now on it counts: called right before a fault."""
        self.fault_s = min(self.fault_s, time.monotonic())

    async def ask(self, asked: Asked, *, protocol: str = "http", gateway: int = 0) -> Answer:
        """Once, on a connection of its own."""
        caller = self.caller(protocol, gateway)
        try:
            return await self.timeline.ask(caller, asked)
        finally:
            await caller.close()

    def caller(self, way: str, gateway: int = 0, tenant: str = QUIET) -> Caller:
        key = self.site.keys.get(tenant, "")
        caller = _CALLERS[way]
        return caller(self.site.gateways[gateway].address("grpc" if issubclass(caller, GrpcCaller) else "http"), key)

    def beside(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin something that goes on meanwhile; it is cancelled when the drill is over."""
        assert self.tasks is not None, "no drill is being carried out"
        self.started.append(self.tasks.create_task(work))
        return self.started[-1]


Act = Callable[[Scene], Awaitable[None]]


async def carry_out(act: Act, site: Site, *, callers: int, deadline_s: float, scale: float, pause_s: float) -> tuple[Run, dict[str, int]]:
    """What callers saw, who each pause so long after an answer, in figures and in words. Raises NotCarriedOut."""
    scene = Scene(site, scale, deadline_s)
    failure: RuntimeError | None = None
    async with asyncio.TaskGroup() as scene.tasks:
        try:
            for caller, asked in harmless_callers(scene, callers):
                scene.beside(keep_asking(scene.timeline, caller, asked, pause_s=pause_s))
            await _until_answered(scene, callers)
            await act(scene)
            scene.begin()
            scene.figures["whole_again_s"] = await _whole_again(scene)
        except RuntimeError as exc:  # out of the group as it is
            failure = exc
        finally:
            for task in scene.started:
                task.cancel()
    if failure is not None:
        raise failure
    answers = scene.timeline.answers
    found = counted(answers, scene.fault_s)._asdict() | (streamed(answers, scene.fault_s)._asdict() if callers else {})
    return Run(**(found | scene.figures)), said(answers, scene.fault_s)


def harmless_callers(scene: Scene, count: int) -> Iterator[tuple[Caller, list[Asked]]]:
    """In all ways, spread over the gateways."""
    gateways = range(len(scene.site.gateways))
    ways = itertools.cycle(itertools.product(_WAYS, gateways))
    for (way, kind, model), gateway in itertools.islice(ways, count):
        order = (gateway, *(other for other in gateways if other != gateway))
        balanced = Either([scene.caller(way, each) for each in order], lambda at, order=order: order[at] in scene.not_ready)
        yield balanced, [Asked(kind, model, deadline_s=scene.deadline_s)]


async def _until_answered(scene: Scene, callers: int) -> None:
    """And well for a while."""
    if not callers:
        return
    answers = scene.timeline.answers
    try:
        async with asyncio.timeout(_START_S):
            while not have_all_answered(answers, HARMLESS, _ANSWERS_BEFORE):
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise NotCarriedOut(f"callers were not answered before anything was done: {said(answers, 0.0)}") from None
    await scene.hold(_BEFORE_S)
    if wrong := said(answers, time.monotonic() - _BEFORE_S * scene.scale):
        raise NotCarriedOut(f"callers were not well before anything was done: {wrong}")


async def _whole_again(scene: Scene) -> float:
    """Seconds from the fault until every process and replica is there, asking on until nothing fails for a while and all who asked
    before are answered; NaN if it never is."""
    whole_s = math.nan
    until_s = time.monotonic() + _WHOLE_S
    while (now_s := time.monotonic()) < until_s:
        if math.isnan(whole_s) and await asyncio.to_thread(scene.site.is_whole):
            whole_s = time.monotonic() - scene.fault_s
        rests = now_s - max(scene.fault_s, last_failure_s(scene.timeline.answers)) > _REST_S * scene.scale
        if rests and not math.isnan(whole_s) and not scene.timeline.is_awaited_since(scene.fault_s + whole_s):
            break
        await asyncio.sleep(_LOOK_S)
    return whole_s
