"""What the data plane of a process wires for jobs: what is known of callers' requests is known of theirs."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from control_plane.app.data_plane.data_plane import DataPlane, DataSockets
from control_plane.batches.domain.batch import EMBEDDINGS
from control_plane.cache.domain.eviction import EvictingCache
from control_plane.cache.response_cache import ResponseCache
from control_plane.events.tenant_feeds import TenantFeeds
from control_plane.fleet.routing.dispatch import FleetDispatcher
from control_plane.fleet.view.catalogue import FleetCatalogue
from control_plane.frontends.jobs.compute import JobCompute
from control_plane.models.fingerprints import Fingerprints
from control_plane.objects.domain.rollout import Rollout, Step
from control_plane.objects.domain.route import WHOLE, Route, Target
from control_plane.objects.mirror import ObjectMirror
from control_plane.settings.frontends import GatewaySettings
from control_plane.triton.servers import Servers
from tests.fakes import FakeModels, FakeUpstream
from tests.fakes.governance import FakeMeter, governance, known_state
from tests.fakes.jobs import job
from tests.fakes.triton.text_model import FakeTextModel
from tests.unit.fleet.fleet_bench import READY, FleetBench, running
from tests.wire.gateway import INFER

ROUTE = Route("r", "stable", targets=(Target("canary", WHOLE),), salt="id")
LINE = b'{"custom_id":"1","method":"POST","url":"/v1/embeddings","body":{"model":"r","input":"hello"}}\n'
ROLLOUT = Rollout("r", "id", "canary", "stable", (Step(WHOLE, 100, 1.0),))


class Jobs:
    """The part of `app/data_plane/jobs.JobServices` that is wired; keeps what is to compute its jobs."""

    max_attempts, max_upload_bytes = 3, 1 << 20
    webhooks = callers_files = deliveries = None

    def __init__(self) -> None:
        self.jobs, self.batches, self.files = SimpleNamespace(), SimpleNamespace(), SimpleNamespace()
        self.compute: JobCompute | None = None

    def run_by(self, compute: JobCompute, *, weight_of: Callable[[str], float]) -> None:
        self.compute = compute


def wired(known: ObjectMirror, servers: Servers, dispatch: FleetDispatcher | None = None) -> tuple[DataPlane, JobCompute]:
    jobs, fingerprints = Jobs(), Fingerprints()
    with socket.socket() as http, socket.socket() as grpc:
        made = DataPlane(
            GatewaySettings(),
            DataSockets(http, grpc),
            None,
            governance=governance(known, meter=FakeMeter(has_log=False)),
            models=FakeModels(),
            servers=servers,
            cache=ResponseCache(fingerprints, EvictingCache(1 << 20)),
            fingerprints=fingerprints,
            tenants=TenantFeeds(),
            dispatch=dispatch,
            jobs=cast("Any", jobs),
        )
    assert jobs.compute is not None
    return made, jobs.compute


@pytest.mark.parametrize("attempts", [pytest.param(1, id="may-be-interrupted"), pytest.param(2, id="is-not-interrupted")])
@pytest.mark.parametrize(("target", "body"), [("/v2/models/r/infer", INFER), (EMBEDDINGS, LINE)])
async def test_what_became_of_a_job_that_a_rollout_has_assigned_is_observed(target: str, body: bytes, attempts: int) -> None:
    known = known_state(routes=(ROUTE,))
    known.rollouts, known.rollout_ids = {"r": ROLLOUT}, {"r": ROLLOUT.id}
    upstream, servers = FakeUpstream(), Servers()
    if target == EMBEDDINGS:
        upstream.http.answer = FakeTextModel("canary")
    servers.up(upstream)
    data_plane, compute = wired(known, servers)
    computed = await compute.compute(job(model="r", target=target, attempts=attempts), body)
    assert computed.answer.status == 200
    assert upstream.http.requests[-1].target == b"/v2/models/canary/infer"
    (seen,) = data_plane.take_observed()
    assert (seen.route, seen.rollout, seen.is_stable, seen.is_fault) == ("r", "id", False, False)


async def test_in_a_fleet_jobs_need_no_load_only_where_their_model_is_loaded() -> None:
    async with running(FleetBench()) as bench:
        bench.dispatch.catalogue = FleetCatalogue(bench.state, bench.servers)
        bench.tritons["s0"].states["a"] = READY
        await bench.loads["s0"].poll_index()
        _, compute = wired(known_state(routes=(Route("to-a", "a"), Route("to-b", "b"))), bench.servers, bench.dispatch)
        assert {name: compute.is_hot(name) for name in ("a", "to-a", "b", "to-b")} == {"a": True, "to-a": True, "b": False, "to-b": False}


async def test_a_collector_that_says_nothing_does_not_prolong_the_drain() -> None:
    """Or a worker is killed before it has told what its last requests have cost."""
    made, _ = wired(known_state(), Servers())
    closed = list[str]()
    made._jobs, made._spans = None, cast("Any", SimpleNamespace(close=lambda: closed.append("spans")))
    await made.drain(0.0)
    assert not closed
    await made.close()
    assert closed == ["spans"]
