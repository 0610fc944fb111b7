"""The copier of requests behind fakes: answered requests, what the other models reply to their copies, idle copies and a budget."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from control_plane.core.errors import DeadlineExceeded, InvalidRequest
from control_plane.core.infer_call import InferCall
from control_plane.core.principal import Principal
from control_plane.core.scope import Scopes
from control_plane.inference.retries.retry_budget import RetryBudget
from control_plane.inference.routes.arm_observations import ArmObservations
from control_plane.objects.domain.rollout import Agreement, Phase, Rollout, Step
from control_plane.objects.domain.route import Route
from control_plane.protocols.http1 import HttpAnswer, make_answer
from control_plane.rollout.shadow import ShadowCopies
from control_plane.telemetry.request_counts import Copied
from tests.fakes.copies import copies_of
from tests.fakes.governance import governance, known_state
from tests.fakes.rollout_steps import steps_of

ROUTE = Route("r", "v1", is_repeatable=True)
ROLLOUT = Rollout(
    "r", "0" * 32, "v2", "v1", steps_of([1], samples=1, min_s=0.0),
    phase=Phase.SHADOW, shadow=Step(10_000, 5, 0.0), agreement=Agreement("exact"),
)  # fmt: skip
CALL = InferCall("v1", "", "id", ())
ANN = Principal("ann", "key", Scopes(()))


def answer(value: float = 1.0, status: int = 200) -> HttpAnswer:
    return make_answer(status, repr(value).encode())


@dataclass
class Copy:
    request: Request
    model: str
    version: str
    size_bytes: int

    async def send(self, server: Any, *, timeout_s: float) -> HttpAnswer:
        self.request.sent.append((self.model, self.version, timeout_s))
        if self.request.takes_s:
            if self.request.takes_s > timeout_s:
                await asyncio.sleep(timeout_s)
                raise DeadlineExceeded("late")
            await asyncio.sleep(self.request.takes_s)
        if isinstance(self.request.reply, Exception):
            raise self.request.reply
        return cast("HttpAnswer", self.request.reply)

    @property
    def is_whole(self) -> bool:
        return self.request.is_whole

    def outputs(self, answer: HttpAnswer) -> dict[str, Any] | None:
        if answer.body == b"unreadable":
            raise InvalidRequest("no tensors")
        return {"Y": np.array([float(answer.body)])} if answer.status == 200 else None


@dataclass
class Request:
    """An answered request, with what the next model will reply to its copy."""

    content: bytes = b"x"
    reply: Any = field(default_factory=answer)
    takes_s: float = 0.0
    size_bytes: int = 10
    is_whole: bool = True
    sent: list[tuple[str, str, float]] = field(default_factory=list)

    def unit(self, call: InferCall) -> tuple[bytes, ...]:
        return (self.content,)

    def copy_for(self, model_name: str, model_version: str) -> Copy:
        return Copy(self, model_name, model_version, self.size_bytes)

    def body_bytes(self) -> int:
        return self.size_bytes


class Dispatch:
    """So many idle copies of the next model."""

    def __init__(self, idle: int) -> None:
        self.retries = RetryBudget(now_s=lambda: asyncio.get_running_loop().time())
        self.retries.asked(1e6)
        self.retries._asked_requests = 10_000
        self.idle = idle

    def idle_replica(self, call: InferCall) -> AbstractContextManager[Any] | None:
        if not self.idle:
            return None
        self.idle -= 1
        return self._held()

    @contextmanager
    def _held(self) -> Iterator[None]:
        try:
            yield None
        finally:
            self.idle += 1


class Bench:
    """A copier of one process, with routes that have a rollout in its shadow, or a mirror."""

    def __init__(
        self, *, rollout: Rollout | None = ROLLOUT, routes: tuple[Route, ...] = (ROUTE,), idle: int = 100, draw: float = 0.5
    ) -> None:
        self.known = known_state(routes=routes)
        if rollout is not None:
            self.known.shadows = {"r": rollout}
            self.known.rollouts = {"r": rollout}
            self.known.rollout_ids = {"r": rollout.id}
        access = governance(self.known).access
        self.observations = ArmObservations(access)
        self.dispatch = Dispatch(idle)
        self.is_idle = True
        self.shadow = ShadowCopies(
            access,
            self.dispatch,
            self.observations,
            is_idle=lambda model: self.is_idle,
            now_s=lambda: asyncio.get_running_loop().time(),
            draw=lambda: draw,
        )

    @asynccontextmanager
    async def running(self) -> Any:
        task = asyncio.get_running_loop().create_task(self.shadow.run())
        await asyncio.sleep(0)
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def offer(self, *requests: Request, route: str = "r", stable: Any = None, **running: Any) -> None:
        now_s = asyncio.get_running_loop().time()
        told = {
            "call": CALL,
            "sent_s": now_s - 0.02,
            "is_cache_hit": False,
            "is_repeatable": True,
            "expected_units": 1.0,
            "principal": ANN,
        } | running
        for request in requests:
            self.shadow.offer(
                self.known.routes[route], request, cast("Any", SimpleNamespace(**told)), answer() if stable is None else stable
            )

    @property
    def counts(self) -> dict[Copied, int]:
        return dict(copies_of(self.shadow.counts))
