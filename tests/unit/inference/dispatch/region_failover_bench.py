"""Other regions that answer as a test says, and requests that may leave for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from control_plane.core.errors import Overloaded
from control_plane.core.infer_call import InferCall
from control_plane.inference.dispatch.dispatch import Dispatch
from control_plane.inference.dispatch.region_failover import RegionFailover
from control_plane.inference.in_flight.running_request import AuthorizedRequest
from control_plane.inference.requests import InferRequest
from control_plane.inference.retries.queries_of_death import QueriesOfDeath
from control_plane.protocols.http1 import HttpAnswer, make_answer
from control_plane.triton.servers import Servers
from tests.fakes import FakeUpstream

OURS, THEIRS = make_answer(200, b"ours"), make_answer(200, b"theirs")


@dataclass
class Permit:
    is_guest: bool = False
    is_in_background: bool = False
    stays_in_region: bool = False
    is_waiting: bool = False
    room: Overloaded | None = None
    """Refusal of the waiting room, where it is full."""
    places: int = 0

    def mark_as_guest(self) -> None:
        self.is_guest = True

    def enter_room(self, retry_after_s: float) -> Permit:
        if self.room is not None:
            raise self.room
        self.places += 1
        return self

    def leave(self) -> None:
        self.places -= 1


@dataclass(eq=False)
class Running:
    call: InferCall = field(default_factory=lambda: InferCall("m", "", "", ()))
    permit: Permit = field(default_factory=Permit)
    is_repeatable: bool = False
    has_flight: bool = False
    is_computed_in_part: bool = False
    is_suspect: bool = False
    sent_s: float | None = None
    model_name: str = "m"
    batch_of: Running | None = None
    left: int = 0

    async def cancelled_flight_ended(self) -> None: ...

    def leave_region(self) -> None:
        self.left += 1


@dataclass
class Request:
    fields: dict[str, str] = field(default_factory=dict)
    size_bytes: int = 10
    text: str = ""

    def field(self, name: str) -> str | None:
        return self.fields.get(name)

    def body_bytes(self) -> int:
        return self.size_bytes

    def content(self, call: InferCall) -> tuple[bytes, ...]:
        return (self.text.encode(),)


@dataclass
class Regions:
    """Other regions that answer with `answer`; None: none of them does."""

    answer: HttpAnswer | None = field(default_factory=lambda: THEIRS)
    is_any_well: bool = True
    takes: bool = True
    asked_for: list[bool] = field(default_factory=list)
    """For each request that was to leave, whether its model is missing here."""
    left_s: float = 0.0
    count: int = 0

    def asked(self) -> None:
        self.count += 1

    def would_take(self, running: Any, *, left_s: float) -> bool:
        return self.takes

    async def ask(self, request: Any, running: Any, *, left_s: float, is_model_missing: bool) -> Any:
        self.asked_for.append(is_model_missing)
        self.left_s = left_s
        return self.answer


@dataclass
class OnlyReady:
    catalogue: object | None = None
    deaths: QueriesOfDeath = field(default_factory=lambda: QueriesOfDeath(now_s=asyncio.get_running_loop().time))


@dataclass
class Fleet:
    """Catalogue of a fleet in which these are loaded."""

    names: set[str] = field(default_factory=set)

    def is_loaded(self, model: str) -> bool:
        return model in self.names


class Bench:
    def __init__(self, *, dispatch: OnlyReady | None = None) -> None:
        self.regions, self.servers, self.loop = Regions(), Servers(), asyncio.get_running_loop()
        self.servers.up(FakeUpstream())
        self.dispatch = dispatch or OnlyReady()
        self.region_failover = RegionFailover(self.regions, self.servers, cast("Dispatch", self.dispatch), now_s=self.loop.time)
        self.times_s: list[float] = []
        """The time that each attempt here was given."""

    async def answer(
        self,
        *here: object,
        running: Running | None = None,
        request: Request | None = None,
        work: Callable[[float], Awaitable[HttpAnswer]] | None = None,
    ) -> HttpAnswer:
        """Answer a request; the attempts here end with what `here` has, in turn."""
        outcomes = list(here)

        async def compute(timeout_s: float) -> Any:
            self.times_s.append(timeout_s)
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        asked = cast("InferRequest[HttpAnswer]", request or Request())
        return await self.region_failover.answer(asked, cast("AuthorizedRequest", running or Running()), 10.0, work or compute)


class Slow:
    """Work here that takes for ever, or as long as a test says."""

    def __init__(self, *takes_s: float) -> None:
        self.takes_s, self.cancelled = list(takes_s), 0

    async def __call__(self, timeout_s: float) -> HttpAnswer:
        try:
            await asyncio.sleep(self.takes_s.pop(0))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return OURS
