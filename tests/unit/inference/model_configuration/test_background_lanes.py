"""Which models have a background lane: asked of Triton, none where it does not say."""

from __future__ import annotations

import orjson
import pytest

from control_plane.core.errors import UpstreamUnavailable
from control_plane.inference.dispatch.single_server import SingleServerDispatch
from control_plane.inference.model_configuration.background_lanes import BackgroundLanes
from control_plane.models.fingerprints import Fingerprints
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.triton.servers import Servers
from tests.fakes import FakeUpstream

CONFIG = make_answer(200, orjson.dumps({"parameters": {"background": {"string_value": "true"}}}))


@pytest.mark.parametrize(
    ("answer", "model", "expected", "asked"),
    [
        pytest.param(CONFIG, "m", True, 1, id="it-says-so"),
        pytest.param(make_answer(200, b"{}"), "m", False, 1, id="it-does-not"),
        pytest.param(make_answer(200, b"oops"), "m", False, 1, id="no-configuration"),
        pytest.param(UpstreamUnavailable("Triton is down"), "m", False, 1, id="triton-is-away"),
        pytest.param(CONFIG, "other", False, 0, id="one-that-asking-would-load"),
    ],
)
async def test_what_has_a_lane(answer: HttpAnswer | Exception, model: str, expected: bool, asked: int) -> None:
    upstream, servers = FakeUpstream(), Servers()

    def answering(request: HttpRequest) -> HttpAnswer:
        if isinstance(answer, Exception):
            raise answer
        return answer

    upstream.http.answer = answering
    servers.up(upstream)
    lanes = BackgroundLanes(SingleServerDispatch(servers), Fingerprints(), is_loaded=lambda name: name == "m")

    assert await lanes.has(model) is expected
    assert len(upstream.http.requests) == asked
