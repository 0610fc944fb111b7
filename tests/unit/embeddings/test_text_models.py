"""Which models embed texts: asked once per load (without a fingerprint every few seconds), and who may see
which."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson
import pytest

from control_plane.core.errors import (
    ControlPlaneError,
    InvalidRequest,
    ModelNotFound,
    PermissionDenied,
    UpstreamFailed,
    UpstreamUnavailable,
)
from control_plane.core.fingerprint import Fingerprint
from control_plane.core.model import ModelState
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.core.scope import Scopes, parse_scope
from control_plane.embeddings.domain.text_model import TextModel
from control_plane.embeddings.text_models import TextModels
from control_plane.inference.single_server import SingleServerDispatch
from control_plane.models.fingerprints import Fingerprints
from control_plane.objects.domain.route import Route
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.triton.servers import Servers
from tests.aio import run
from tests.fakes import FakeUpstream
from tests.fakes.governance import governance, known_state
from tests.fakes.text_model import DIMENSIONS, FakeTextModel

OTHER = {"name": "m", "input": [], "output": []}


@dataclass
class World:
    triton: FakeTextModel = field(default_factory=FakeTextModel)
    upstream: FakeUpstream = field(default_factory=FakeUpstream)
    fingerprints: Fingerprints = field(default_factory=Fingerprints)
    routes: tuple[Route, ...] = ()
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.upstream.http.answer = self.triton
        servers = Servers()
        servers.up(self.upstream)
        access = governance(known_state(routes=self.routes)).access
        self.models = TextModels(SingleServerDispatch(servers), self.fingerprints, access, now_s=lambda: self.now_s)

    def of(self, name: str = "m", version: str = "") -> TextModel:
        return run(self.models.describe(name, version, timeout_s=1.0))

    def load(self, name: str = "m") -> None:
        self.fingerprints.change({name: Fingerprint(bytes(32), is_cacheable=False)})


def test_a_model_that_is_loaded_is_asked_for_once_however_long_it_is() -> None:
    world = World()
    world.load()

    first = world.of()
    world.now_s = 1e6

    assert world.of() is first
    assert (first.dimensions, world.triton.configs_asked) == (DIMENSIONS, 1)


def test_a_model_that_is_loaded_anew_is_asked_for_anew() -> None:
    world = World()
    world.load()
    assert world.of().max_batch_size == 4

    world.triton.max_batch_size = 16
    world.load()

    assert world.of().max_batch_size == 16


def test_a_model_of_which_nobody_knows_when_it_is_loaded_is_remembered_for_a_moment() -> None:
    world = World()
    world.of()
    world.now_s = 1.9
    world.of()
    assert world.triton.configs_asked == 1

    world.now_s = 2.1
    world.of()

    assert world.triton.configs_asked == 2


def test_what_was_asked_before_a_load_does_not_count_after_it() -> None:
    world = World()
    world.load()
    answer, world.upstream.http.answer = world.triton, lambda request: (world.load(), world.triton(request))[1]
    world.of()
    world.upstream.http.answer = answer

    world.of()

    assert world.triton.configs_asked == 2


def test_versions_are_models_of_their_own() -> None:
    world = World()
    world.of(version="3")
    world.of()

    assert world.triton.targets == [b"/v2/models/m/versions/3/config", b"/v2/models/m/config"]


def test_a_model_of_another_kind_is_refused_with_what_it_would_take_and_remembered() -> None:
    world = World()
    world.load()
    world.triton.config = OTHER

    for _ in range(2):
        with pytest.raises(InvalidRequest, match=r"'m' is no text-embedding model: one takes one text \(a TYPE_STRING") as caught:
            world.of()
        assert caught.value.field == "model"
    assert world.triton.configs_asked == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param(make_answer(404, b"{}"), ModelNotFound, id="unknown"),
        pytest.param(make_answer(400, b"{}"), ModelNotFound, id="bad-version"),
        pytest.param(make_answer(503, b"{}"), UpstreamUnavailable, id="not-ready"),
        pytest.param(make_answer(500, b"{}"), UpstreamFailed, id="failed"),
        pytest.param(make_answer(200, b"no json"), UpstreamFailed, id="no-configuration"),
    ],
)
def test_what_triton_does_not_tell_is_asked_again(answer: HttpAnswer, error: type[ControlPlaneError]) -> None:
    world = World()
    world.load()
    world.upstream.http.answer = lambda request: answer

    with pytest.raises(error):
        world.of()
    world.upstream.http.answer = world.triton

    assert world.of().dimensions == DIMENSIONS


TEAM = Principal("team", "key", Scopes((parse_scope("infer:r*"), parse_scope("infer:other"))))


@pytest.mark.parametrize(
    ("principal", "expected"),
    [
        pytest.param(ANONYMOUS, ["m", "r", "r-owned"], id="everybody"),
        pytest.param(TEAM, ["r"], id="by-scope-and-tenant"),
    ],
)
def test_who_may_use_what(principal: Principal, expected: list[str]) -> None:
    routes = (Route("r", "m"), Route("r-gone", "gone"), Route("r-owned", "m", tenants=("owners",)), Route("hidden", "gone"))
    world = World(routes=routes)
    ready = dict.fromkeys(("m", "other", "hidden"), ModelState.READY)
    world.upstream.control.states = {**ready, "gone": ModelState.UNAVAILABLE}

    assert run(world.models.usable(principal, timeout_s=1.0)) == expected


def test_without_triton_nobody_knows() -> None:
    world = World()
    world.upstream.control.live = False

    with pytest.raises(UpstreamUnavailable):
        run(world.models.usable(ANONYMOUS, timeout_s=1.0))


CALLER = Principal("team", "key", Scopes((parse_scope("infer:m"), parse_scope("infer:to-m"), parse_scope("infer:theirs"))))


@pytest.mark.parametrize(
    ("name", "answer", "error"),
    [
        pytest.param("m", None, None, id="a-text-model"),
        pytest.param("to-m", None, None, id="a-route-to-one"),
        pytest.param("n", None, PermissionDenied, id="not-the-callers"),
        pytest.param("theirs", None, PermissionDenied, id="a-route-of-others"),
        pytest.param("m", make_answer(400, b"{}"), ModelNotFound, id="unknown"),
        pytest.param("m", make_answer(200, orjson.dumps(OTHER)), InvalidRequest, id="no-text-model"),
        pytest.param("m", make_answer(503, b"{}"), None, id="being-loaded"),
        pytest.param("m", UpstreamUnavailable("Triton is down"), None, id="away"),
    ],
)
def test_what_is_required_of_a_model_for_later(
    name: str, answer: HttpAnswer | Exception | None, error: type[ControlPlaneError] | None
) -> None:
    world = World(routes=(Route("to-m", "m"), Route("theirs", "m", tenants=("others",))))

    def answering(request: HttpRequest) -> HttpAnswer:
        if isinstance(answer, Exception):
            raise answer
        return world.triton(request) if answer is None else answer

    world.upstream.http.answer = answering
    if error is None:
        run(world.models.require(CALLER, name))
        return
    with pytest.raises(error):
        run(world.models.require(CALLER, name))
