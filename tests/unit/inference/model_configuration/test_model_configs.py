"""What is read in configurations: asked once per load, without a fingerprint every few seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from control_plane.core.errors import ControlPlaneError, ModelNotFound, UpstreamFailed, UpstreamUnavailable
from control_plane.core.fingerprint import Fingerprint
from control_plane.embeddings.domain.text_model import TextModel
from control_plane.embeddings.domain.text_model_config import read_text_model
from control_plane.inference.dispatch.single_server import SingleServerDispatch
from control_plane.inference.model_configuration.model_configs import ModelConfigs
from control_plane.models.fingerprints import Fingerprints
from control_plane.protocols.http1 import HttpAnswer, make_answer
from control_plane.triton.servers import Servers
from tests.aio import run
from tests.fakes import FakeUpstream
from tests.fakes.triton.text_model import DIMENSIONS, FakeTextModel


@dataclass
class World:
    triton: FakeTextModel = field(default_factory=FakeTextModel)
    upstream: FakeUpstream = field(default_factory=FakeUpstream)
    fingerprints: Fingerprints = field(default_factory=Fingerprints)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.upstream.http.answer = self.triton
        servers = Servers()
        servers.up(self.upstream)
        self.configs = ModelConfigs(SingleServerDispatch(servers), self.fingerprints, read_text_model, now_s=lambda: self.now_s)

    def of(self, name: str = "m", version: str = "") -> TextModel:
        model = run(self.configs.get(name, version, timeout_s=1.0))
        assert model is not None
        return model

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


def test_what_is_known_without_asking_is_what_would_not_be_asked_for_again() -> None:
    world = World()
    assert world.configs.known("m") is None
    found = world.of()
    assert world.configs.known("m") is found

    world.now_s = 2.1
    assert world.configs.known("m") is None
    world.load()
    assert world.configs.known("m") is None
    assert world.of() is world.configs.known("m")


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
