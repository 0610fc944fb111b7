"""Which requests tell how much time they have left: those of models whose configuration asks for it, which is read once a load."""

from __future__ import annotations

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
from tests.fakes import FakeUpstream
from tests.fakes.governance import governance

WANTS, DOES_NOT = (make_answer(200, orjson.dumps({"parameters": {"time_left": {"string_value": said}}})) for said in ("true", "false"))


@dataclass
class World:
    answer: HttpAnswer | Exception = field(default_factory=lambda: WANTS)
    upstream: FakeUpstream = field(default_factory=FakeUpstream)
    fingerprints: Fingerprints = field(default_factory=Fingerprints)
    now_s: float = 0.0
    takes_s: float = 0.0

    def __post_init__(self) -> None:
        servers = Servers()
        self.upstream.http.answer = self._answer
        servers.up(self.upstream)
        self.load()
        dispatch = SingleServerDispatch(servers, now_s=lambda: self.now_s)
        self.time_left = TimeLeft(dispatch, self.fingerprints, is_loaded=lambda name: name == "m", now_s=lambda: self.now_s)

    def _answer(self, request: HttpRequest) -> HttpAnswer:
        self.now_s += self.takes_s
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def load(self) -> None:
        self.fingerprints.change({"m": Fingerprint(bytes(32), is_cacheable=False)})

    @property
    def asked(self) -> int:
        return len(self.upstream.http.requests)

    async def tells(self, model: str = "m", *, timeout_s: float = 5.0) -> tuple[bool, float]:
        permit = governance().admission.admit("") or pytest.fail("not admitted")
        left_s = await self.time_left.tell(permit, model, timeout_s)
        return permit.tells_time_left, left_s


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
async def test_who_tells(answer: HttpAnswer | Exception, model: str, expected: bool, asked: int) -> None:
    world = World(answer)

    assert await world.tells(model) == (expected, 5.0)
    assert world.asked == asked


async def test_a_configuration_is_asked_for_once_a_load() -> None:
    world = World(DOES_NOT)
    assert world.time_left.may_be_wanted("m"), "nothing is known yet"
    assert [await world.tells(), await world.tells()] == [(False, 5.0)] * 2
    assert (world.asked, world.time_left.may_be_wanted("m")) == (1, False)

    world.answer = WANTS
    world.load()

    assert world.time_left.may_be_wanted("m")
    assert [await world.tells(), await world.tells()] == [(True, 5.0)] * 2
    assert (world.asked, world.time_left.may_be_wanted("m")) == (2, True)


async def test_what_asking_took_is_no_longer_left() -> None:
    world = World(takes_s=0.25)

    assert [await world.tells(), await world.tells()] == [(True, 4.75), (True, 5.0)]


async def test_where_configurations_are_not_to_be_had_not_every_request_asks() -> None:
    world = World(UpstreamUnavailable("Triton is down"))
    assert [await world.tells(), await world.tells()] == [(False, 5.0)] * 2
    assert world.asked == 1

    world.answer, world.now_s = WANTS, 3.0

    assert await world.tells() == (True, 5.0)
