"""Which models embed texts, and who may see which."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson
import pytest

from control_plane.core.errors import (
    ControlPlaneError,
    InvalidRequest,
    ModelNotFound,
    PermissionDenied,
    UpstreamUnavailable,
)
from control_plane.core.fingerprint import Fingerprint
from control_plane.core.model import ModelState
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.core.scope import Scopes, parse_scope
from control_plane.embeddings.domain.text_model import TextModel
from control_plane.embeddings.text_models import TextModels
from control_plane.inference.dispatch.single_server import SingleServerDispatch
from control_plane.models.fingerprints import Fingerprints
from control_plane.objects.domain.route import Route
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.triton.servers import Servers
from tests.aio import run
from tests.fakes import FakeUpstream
from tests.fakes.governance import governance, known_state
from tests.fakes.triton.text_model import FakeTextModel

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


def test_a_model_of_another_kind_is_refused_with_what_it_would_take_and_remembered() -> None:
    world = World()
    world.load()
    world.triton.config = OTHER

    for _ in range(2):
        with pytest.raises(InvalidRequest, match=r"'m' is no text-embedding model: one takes one text \(a TYPE_STRING") as caught:
            world.of()
        assert caught.value.field == "model"
    assert world.triton.configs_asked == 1


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
