"""What computes jobs, as a process has it: its answers are those of `infer`, and it knows what is loaded."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from control_plane.app.data_plane.job_compute import make_job_compute
from control_plane.cache.domain.eviction import EvictingCache
from control_plane.cache.response_cache import ResponseCache
from control_plane.core.errors import ControlPlaneError
from control_plane.core.fingerprint import Fingerprint
from control_plane.frontends.common.http_errors import render_error
from control_plane.frontends.jobs.compute import JobCompute
from control_plane.frontends.kserve.http import V2Http
from control_plane.inference.caching.cached_inference import CachedInference
from control_plane.inference.governance import Governance
from control_plane.inference.inference import InferenceService
from control_plane.models.fingerprints import Fingerprints
from control_plane.objects.domain.route import Route, Target
from control_plane.objects.domain.tenant import Tenant
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.protocols.kserve.requests.body_limits import BodyLimits
from tests.fakes.governance import FakeMeter, api_key, governance, key_text, known_state
from tests.fakes.jobs import job
from tests.wire.gateway import INFER
from tests.wire.services import Services

ROUTES = (Route("route", "m"), Route("split", "m", targets=(Target("n", 10_000),)))
BINARY = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}'


def says(request: HttpRequest) -> HttpAnswer:
    """Answer as a model: with a tensor in binary form, or with an error."""
    if b"fail" in request.target:
        return make_answer(400, b'{"error":"wrong shape"}')
    return make_answer(200, b'{"outputs":[]}\x00\x01\xff', headers=[(b"Inference-Header-Content-Length", b"14")])


@asynccontextmanager
async def computing(*, is_on: bool, loaded: tuple[str, ...] = ()) -> AsyncIterator[tuple[V2Http, JobCompute, Services]]:
    known = known_state(keys=(api_key(1, "infer:*"),), tenants=(Tenant("team"),), routes=ROUTES)
    governed = governance(known, authentication=is_on, meter=FakeMeter(has_log=False))
    fingerprints = Fingerprints()
    fingerprints.change({"cached": Fingerprint(bytes(32), is_cacheable=True)})
    cached = CachedInference(ResponseCache(fingerprints, EvictingCache(1 << 20)))
    it = Services(governed=governed, cached=cached, body_limits=BodyLimits(), max_buffered_bytes=1 << 20)
    it.upstream.http.answer = says
    http = V2Http(it.kserve)

    def inference_with(own: Governance) -> InferenceService:
        return InferenceService(servers=it.servers, recorder=it.recorder, governance=own, cached=cached, default_timeout_s=9.0)

    def no_embeddings(inference: InferenceService) -> Any:
        raise AssertionError

    compute = make_job_compute(
        http.context,
        it.budget,
        governance=governed,
        dispatch=it.inference.dispatch,
        fingerprints=fingerprints,
        is_loaded=set(loaded).__contains__,
        inference_with=inference_with,
        embeddings_of=no_embeddings,
        max_attempts=4,
    )
    async with it.running():
        yield http, compute, it


async def infer(http: V2Http, target: bytes, headers: dict[str, str], body: bytes) -> HttpAnswer:
    """The answer of `infer` to a caller."""
    fields = [(name.encode(), value.encode()) for name, value in headers.items()]
    request = HttpRequest(b"POST", target, [*fields, (b"authorization", f"Bearer {key_text(1)}".encode())], body)
    try:
        answer = await http.answer(request)
    except ControlPlaneError as exc:
        return render_error(exc, target)
    assert isinstance(answer, HttpAnswer)
    return answer


@pytest.mark.parametrize("is_on", [pytest.param(True, id="keys"), pytest.param(False, id="no-keys")])
@pytest.mark.parametrize(
    ("model", "headers", "body"),
    [
        pytest.param("m", {}, INFER, id="a-model"),
        pytest.param("route", {}, INFER, id="a-route"),
        pytest.param("split", {}, INFER, id="a-route-to-another-model"),
        pytest.param("cached", {}, INFER, id="from-the-cache"),
        pytest.param("m", {"content-encoding": "gzip"}, gzip.compress(INFER), id="compressed"),
        pytest.param("route", {"content-encoding": "gzip"}, gzip.compress(INFER), id="compressed-for-a-route"),
        pytest.param("m", {"inference-header-content-length": str(len(BINARY))}, BINARY + b"\x00\x00\x80?", id="binary"),
        pytest.param("fails", {}, INFER, id="the-models-error"),
        pytest.param("m", {}, b"{", id="no-json"),
        pytest.param("m", {"content-encoding": "gzip"}, b"no gzip", id="not-compressed"),
        pytest.param("m", {"tidegate-timeout-ms": "soon"}, INFER, id="a-wrong-field"),
    ],
)
async def test_the_result_is_what_infer_says_byte_for_byte(model: str, headers: dict[str, str], body: bytes, is_on: bool) -> None:
    target = f"/v2/models/{model}/infer"
    whose: dict[str, Any] = {"scopes": ("infer:*",)} if is_on else {"tenant": "", "key_id": "", "scopes": ()}
    async with computing(is_on=is_on) as (http, compute, it):
        await infer(http, target.encode(), headers, body)
        synchronous = await infer(http, target.encode(), headers, body)
        computed = await compute.compute(job(model=model, target=target, headers=tuple(headers.items()), **whose), body)

    assert (computed.answer.status, computed.answer.head, computed.answer.body) == (
        synchronous.status,
        synchronous.head,
        bytes(synchronous.body),
    )
    assert len({(sent.target, bytes(sent.body)) for sent in it.upstream.http.requests}) <= 1, "the same is sent"


async def test_a_model_is_hot_that_needs_no_load_also_by_a_route() -> None:
    async with computing(is_on=True, loaded=("m",)) as (_, compute, _it):
        assert [compute.is_hot(name) for name in ("m", "route", "n", "fails")] == [True, True, False, False]
