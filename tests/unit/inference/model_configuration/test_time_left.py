"""Which requests tell how much time they have left: those of models whose configuration asks for it, which is read once a load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson
import pytest

from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.fingerprint import Fingerprint
from control_plane.inference.dispatch.single_server import SingleServerDispatch
from control_plane.inference.model_configuration.time_left import TimeLeft
from control_plane.models.fingerprints import Fingerprints
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.triton.servers import Servers
from tests.aio import settle
from tests.fakes import FakeUpstream
from tests.fakes.governance import governance

WANTS, DOES_NOT = (make_answer(200, orjson.dumps({"parameters": {"time_left": {"string_value": said}}})) for said in ("true", "false"))


@dataclass
class World:
    answer: HttpAnswer | Exception = field(default_factory=lambda: WANTS)
    upstream: FakeUpstream = field(default_factory=FakeUpstream)
    fingerprints: Fingerprints = field(default_factory=Fingerprints)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        servers = Servers()
        self.upstream.http.answer = self._answer
        servers.up(self.upstream)
        self.load()
        dispatch = SingleServerDispatch(servers, now_s=lambda: self.now_s)
        self.time_left = TimeLeft(dispatch, self.fingerprints, is_loaded=lambda name: name == "m", now_s=lambda: self.now_s)

    def _answer(self, request: HttpRequest) -> HttpAnswer:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def load(self) -> None:
        self.fingerprints.change({"m": Fingerprint(bytes(32), is_cacheable=False)})

    @property
    def asked(self) -> int:
        return len(self.upstream.http.requests)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        async with asyncio.TaskGroup() as tasks:
            asks = tasks.create_task(self.time_left.run())
            await settle()
            yield self
            asks.cancel()

    def tells(self, model: str = "m") -> bool:
        permit = governance().admission.admit("") or pytest.fail("not admitted")
        self.time_left.tell(permit, model)
        return permit.tells_time_left

    async def told(self, model: str = "m") -> list[bool]:
        """Whether the model is told of a request, and then of the next."""
        first = self.tells(model)
        await settle()
        return [first, self.tells(model)]


@pytest.mark.parametrize(
    ("answer", "model", "expected", "asked"),
    [
        pytest.param(WANTS, "m", True, 1, id="it-wants-to-know"),
        pytest.param(DOES_NOT, "m", False, 1, id="it-does-not"),
        pytest.param(make_answer(200, b"oops"), "m", False, 1, id="no-configuration"),
        pytest.param(UpstreamUnavailable("Triton is down"), "m", False, 1, id="triton-is-away"),
        pytest.param(WANTS, "other", False, 0, id="one-that-asking-would-load"),
    ],
)
async def test_who_is_told_once_that_is_known(answer: HttpAnswer | Exception, model: str, expected: bool, asked: int) -> None:
    async with World(answer).running() as world:
        assert await world.told(model) == [False, expected]
        assert world.asked == asked


async def test_a_configuration_is_asked_for_once_a_load() -> None:
    async with World(DOES_NOT).running() as world:
        assert world.time_left.may_be_wanted("m"), "nothing is known yet"
        assert await world.told() == [False, False]
        assert (world.asked, world.time_left.may_be_wanted("m")) == (1, False)

        world.answer = WANTS
        world.load()

        assert world.time_left.may_be_wanted("m")
        assert await world.told() == [False, True]
        assert (world.asked, world.time_left.may_be_wanted("m")) == (2, True)


async def test_of_many_at_once_one_asks_and_none_waits() -> None:
    async with World().running() as world:
        world.upstream.http.calls.hold()
        for _ in range(20):
            assert await world.told() == [False, False]
        assert world.asked == 1
        world.upstream.http.calls.may_answer.set()
        await settle()
        assert world.tells()


async def test_where_configurations_are_not_to_be_had_not_every_request_asks() -> None:
    async with World(UpstreamUnavailable("Triton is down")).running() as world:
        assert await world.told() == [False, False]
        assert world.asked == 1

        world.answer, world.now_s = WANTS, 3.0

        assert await world.told() == [False, True]


async def test_a_defect_ends_no_other_task(caplog: pytest.LogCaptureFixture) -> None:
    async with World(ZeroDivisionError("oops")).running() as world:
        assert await world.told() == [False, False]
    assert "the configuration of model 'm' could not be asked for; this is a defect" in caplog.text


async def test_nothing_is_asked_while_the_gateway_starts_or_stops() -> None:
    world = World()
    assert world.tells() is False
    async with world.running():
        pass
    assert world.tells() is False
    assert world.asked == 0
