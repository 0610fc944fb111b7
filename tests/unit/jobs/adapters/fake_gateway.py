"""Fake gateway over HTTP that computes a job worker's requests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from control_plane.core.errors import DeadlineExceeded
from control_plane.jobs.attempts import encode_outcome
from control_plane.jobs.ports import Computed
from control_plane.metering.domain.usage import Usage
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.triton.ports import HttpStream, Slot

DONE = make_answer(200, encode_outcome(Computed(make_answer(200, b"done"), "m", Usage(requests=1))))


@dataclass
class FakeGateway:
    """A gateway that gives one answer, or fails."""

    answer: HttpAnswer | Exception = field(default_factory=lambda: DONE)
    asked: list[HttpRequest] = field(default_factory=list)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: computed at once."""
    is_frozen: bool = False
    times_live: int = 0
    index: HttpAnswer | Exception = field(default_factory=lambda: make_answer(404))
    """Its answer to who asks which models are loaded."""
    answers_index: asyncio.Event = field(default_factory=asyncio.Event)
    times_indexed: int = 0

    def __post_init__(self) -> None:
        self.goes_on.set()
        self.answers_index.set()

    async def send(self, request: HttpRequest, *, timeout_s: float, slot: Slot | None = None) -> HttpAnswer:
        if request.target == b"/v2/health/live":
            self.times_live += 1
            await asyncio.sleep(0)
            if self.is_frozen:
                raise DeadlineExceeded("no answer")
            return make_answer(200)
        if request.target == b"/v2/repository/index":
            self.times_indexed += 1
            await self.answers_index.wait()
            return _given(self.index)
        self.asked.append(request)
        await self.goes_on.wait()
        await asyncio.sleep(0)
        return _given(self.answer)

    async def stream(self, request: HttpRequest, *, timeout_s: float, slot: Slot | None = None) -> HttpAnswer | HttpStream:
        raise NotImplementedError

    async def close(self) -> None: ...


def _given(answer: HttpAnswer | Exception) -> HttpAnswer:
    if isinstance(answer, Exception):
        raise answer
    return answer
