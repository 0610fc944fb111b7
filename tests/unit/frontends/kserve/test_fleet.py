"""Answers of both KServe frontends for a fleet of two servers, with fake Tritons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from tritonclient.grpc import service_pb2

from control_plane.core.errors import ControlPlaneError, UnparsableRequest, UpstreamUnavailable
from control_plane.core.model import ModelState, ModelVersion
from control_plane.fleet.domain.memory import DesiredState
from control_plane.fleet.loading.replica_loader import ReplicaLoader
from control_plane.fleet.routing.dispatch import FleetDispatcher
from control_plane.fleet.routing.model_router import ModelRouter
from control_plane.fleet.view.catalogue import FleetCatalogue
from control_plane.fleet.view.state import FleetState
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.common.http_errors import render_error
from control_plane.frontends.kserve.grpc import V2Grpc
from control_plane.frontends.kserve.grpc_fleet import GrpcFleetAnswers
from control_plane.frontends.kserve.http import V2Http
from control_plane.frontends.kserve.http_fleet import HttpFleetAnswers
from control_plane.frontends.kserve.services import KServeServices
from control_plane.inference.inference import InferenceService
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.tenant import Tenant
from control_plane.protocols.grpc import PREFIX_BYTES, GrpcAnswer, GrpcHead, frame_message, message_answer, status_answer
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.protocols.kserve.merged_statistics import no_statistics
from control_plane.protocols.kserve.requests.body_limits import BodyLimits
from control_plane.protocols.kserve.routes import read_route
from control_plane.triton.ports import GrpcCall
from control_plane.triton.servers import Servers
from tests.aio import run
from tests.fakes import FakeModels, FakeRecorder, FakeUpstream
from tests.fakes.governance import api_key, governance, key_text, known_state
from tests.unit.fleet.fleet_bench import READY, model

NAMES = ("s0", "s1")
SERVICE = "/inference.GRPCInferenceService/"


def counted(name: str, count: int) -> dict[str, Any]:
    found = no_statistics(name, "1")
    found["inference_count"], found["last_inference"] = count, 1000 + count
    found["batch_stats"] = [{"batch_size": 4, "compute_infer": {"count": count, "ns": 10 * count}}]
    return found


class Bench:
    """A fleet in which `a` is on both servers, `b` on the first, and `cold` on none."""

    def __init__(self) -> None:
        self.servers = Servers(None, NAMES)
        self.state = FleetState(self.servers, budget_bytes=1000)
        self.state.specs.describe({name: model(name) for name in ("a", "b", "cold")})
        self.upstreams = {name: FakeUpstream() for name in NAMES}
        for name, loaded in (("s0", {"a": READY, "b": READY}), ("s1", {"a": READY})):
            self.upstreams[name].control.states = dict(loaded)
            self.servers.members[name].up(self.upstreams[name])
            self.state.observe(name, [ModelVersion(each, "1", state, "") for each, state in loaded.items()])
        catalogue = FleetCatalogue(self.state, self.servers)
        self.http = HttpFleetAnswers(catalogue, timeout_s=5.0)
        self.grpc = GrpcFleetAnswers(catalogue)

    def tell(self, **statistics: list[dict[str, Any]]) -> None:
        """Set the statistics of each server's Triton, for both protocols."""
        for name, found in statistics.items():
            body = orjson.dumps({"model_stats": found})
            message = service_pb2.ModelStatisticsResponse()
            for each in found:
                batch = service_pb2.InferBatchStatistics(batch_size=4)
                batch.compute_infer.count, batch.compute_infer.ns = (
                    each["batch_stats"][0]["compute_infer"][key] for key in ("count", "ns")
                )
                message.model_stats.add(
                    name=each["name"],
                    version=each["version"],
                    last_inference=each["last_inference"],
                    inference_count=each["inference_count"],
                    batch_stats=[batch],
                )
            packed = message.SerializeToString()
            self.upstreams[name].http.answer = lambda request, body=body: make_answer(200, body)
            self.upstreams[name].grpc.answer = lambda call, packed=packed: message_answer(packed)

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
        answer = run(self.http.answer(HttpRequest(method.encode(), path.encode(), body=body), read_route(method.encode(), path.encode())))
        assert isinstance(answer, HttpAnswer)
        return answer.status, orjson.loads(answer.body) if answer.body else None

    def index(self, **fields: Any) -> GrpcAnswer:
        return run(self.grpc.index(service_pb2.RepositoryIndexRequest(**fields)))

    def ready(self, name: str, version: str = "") -> GrpcAnswer:
        return run(self.grpc.ready(self.call("ModelReady"), name, version, timeout_s=5.0))

    def statistics(self, name: str, version: str = "") -> GrpcAnswer:
        return run(self.grpc.statistics(self.call("ModelStatistics"), name, version, timeout_s=5.0))

    def call(self, method: str) -> GrpcCall:
        return GrpcCall(GrpcHead(SERVICE + method), frame_message(b""))


def read(answer: GrpcAnswer, kind: Any) -> Any:
    assert answer.code == 0, answer
    return kind.FromString(b"".join(answer.body)[PREFIX_BYTES:])


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_index_is_that_of_all_servers_in_tritons_form(bench: Bench) -> None:
    bench.upstreams["s1"].control.states["b"] = ModelState.UNAVAILABLE
    a, b = ({"name": name, "version": "1", "state": "READY"} for name in "ab")
    assert bench.ask("POST", "/v2/repository/index") == (200, [a, b, {"name": "cold"}])
    assert bench.ask("POST", "/v2/repository/index", b'{"ready":true}') == (200, [a, b])
    found = read(bench.index(), service_pb2.RepositoryIndexResponse)
    assert [(line.name, line.version, line.state) for line in found.models] == [("a", "1", "READY"), ("b", "1", "READY"), ("cold", "", "")]
    found = read(bench.index(ready=True), service_pb2.RepositoryIndexResponse)
    assert [line.name for line in found.models] == ["a", "b"]


def test_what_failed_says_why(bench: Bench) -> None:
    bench.upstreams["s1"].control.states["cold"] = ModelState.UNAVAILABLE
    why = {"name": "cold", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
    assert why in bench.ask("POST", "/v2/repository/index")[1]
    (line,) = [line for line in read(bench.index(), service_pb2.RepositoryIndexResponse).models if line.name == "cold"]
    assert (line.version, line.state, line.reason) == ("1", "UNAVAILABLE", "unloaded")


def test_an_index_that_triton_refuses_is_refused(bench: Bench) -> None:
    assert bench.index(repository_name="r").code == 12
    for body in (b'{"ready":1}', b'{"ready":'):
        with pytest.raises(UnparsableRequest):
            bench.ask("POST", "/v2/repository/index", body)


def test_a_model_is_ready_if_a_request_would_be_served(bench: Bench) -> None:
    for name, status in (("a", 200), ("cold", 200), ("nonesuch", 400)):
        found, body = bench.ask("GET", f"/v2/models/{name}/ready")
        assert (found, body) == (status, None if status == 200 else {"error": "Model version not ready"})
        assert read(bench.ready(name), service_pb2.ModelReadyResponse).ready is (status == 200)
    bench.state.fleet.models["cold"].quarantined_until_s = float("inf")
    assert bench.ask("GET", "/v2/models/cold/ready")[0] == 400
    assert not read(bench.ready("cold"), service_pb2.ModelReadyResponse).ready
    assert not any(upstream.http.requests or upstream.grpc.requests for upstream in bench.upstreams.values())


def test_which_versions_there_are_a_server_knows_that_has_it(bench: Bench) -> None:
    bench.upstreams["s0"].http.answer = lambda request: make_answer(400, b'{"error":"Model version not ready"}')
    bench.upstreams["s0"].grpc.answer = lambda call: message_answer(b"")
    assert bench.ask("GET", "/v2/models/b/versions/9/ready")[0] == 400
    assert not read(bench.ready("b", "9"), service_pb2.ModelReadyResponse).ready
    assert bench.ask("GET", "/v2/models/cold/versions/9/ready")[0] == 200, "nobody can say before it is loaded"


def test_one_server_that_has_it_is_enough_and_one_that_has_died_no_matter(bench: Bench) -> None:
    def fail(_: Any) -> Any:
        raise UpstreamUnavailable("connection refused")

    bench.upstreams["s0"].http.answer = bench.upstreams["s0"].grpc.answer = fail
    bench.upstreams["s1"].http.answer = lambda request: make_answer(200, b"")
    bench.upstreams["s1"].grpc.answer = lambda call: message_answer(service_pb2.ModelReadyResponse(ready=True).SerializeToString())
    assert bench.ask("GET", "/v2/models/a/versions/1/ready")[0] == 200
    assert read(bench.ready("a", "1"), service_pb2.ModelReadyResponse).ready
    bench.state.apply_wishes({"a": DesiredState(min_replicas=0, is_suspended=True)})
    assert bench.ask("GET", "/v2/models/a/versions/1/ready")[0] == 400
    assert not read(bench.ready("a", "1"), service_pb2.ModelReadyResponse).ready


def test_statistics_of_a_model_on_several_servers_are_the_sum(bench: Bench) -> None:
    bench.tell(s0=[counted("a", 3)], s1=[counted("a", 4)])
    (found,) = bench.ask("GET", "/v2/models/a/stats")[1]["model_stats"]
    assert (found["inference_count"], found["last_inference"], found["version"]) == (7, 1004, "1")
    assert found["batch_stats"] == [{"batch_size": 4, "compute_infer": {"count": 7, "ns": 70}}]
    (told,) = read(bench.statistics("a"), service_pb2.ModelStatisticsResponse).model_stats
    assert (told.name, told.version, told.inference_count, told.last_inference) == ("a", "1", 7, 1004)
    assert [(batch.batch_size, batch.compute_infer.count, batch.compute_infer.ns) for batch in told.batch_stats] == [(4, 7, 70)]


def test_statistics_of_all_models_are_those_of_all_servers(bench: Bench) -> None:
    bench.tell(s0=[counted("a", 3), counted("b", 5)], s1=[counted("a", 4)])
    found = bench.ask("GET", "/v2/models/stats")[1]["model_stats"]
    assert [(each["name"], each["inference_count"]) for each in found] == [("a", 7), ("b", 5)]
    told = read(bench.statistics(""), service_pb2.ModelStatisticsResponse).model_stats
    assert [(each.name, each.inference_count) for each in told] == [("a", 7), ("b", 5)]


def test_of_one_server_they_are_passed_on_as_they_came(bench: Bench) -> None:
    bench.upstreams["s0"].http.answer = lambda request: make_answer(200, b'{"model_stats":[ ]}')
    assert run(bench.http.answer(HttpRequest(b"GET", b"/v2/models/b/stats"), read_route(b"GET", b"/v2/models/b/stats"))) == make_answer(
        200, b'{"model_stats":[ ]}'
    )
    assert bench.upstreams["s1"].http.requests == []


@pytest.mark.parametrize("version", ["", "1"])
def test_a_model_that_is_nowhere_has_served_nothing_and_is_not_loaded_for_that(bench: Bench, version: str) -> None:
    path = f"/v2/models/cold/versions/{version}/stats" if version else "/v2/models/cold/stats"
    assert bench.ask("GET", path) == (200, {"model_stats": [no_statistics("cold", version)]})
    (told,) = read(bench.statistics("cold", version), service_pb2.ModelStatisticsResponse).model_stats
    assert (told.name, told.version, told.inference_count, told.inference_stats.success.count) == ("cold", version, 0, 0)
    assert all(upstream.control.loads == [] for upstream in bench.upstreams.values())


def test_of_one_that_nobody_knows_triton_says_the_same(bench: Bench) -> None:
    assert bench.ask("GET", "/v2/models/nonesuch/stats") == (400, {"error": "requested model 'nonesuch' is not available"})
    assert bench.statistics("nonesuch").code == 3


def test_a_refusal_of_all_servers_is_tritons_own(bench: Bench) -> None:
    for upstream in bench.upstreams.values():
        upstream.http.answer = lambda request: make_answer(400, b'{"error":"requested model version is not available"}')
        upstream.grpc.answer = lambda call: status_answer(3, "requested model version is not available")
    assert bench.ask("GET", "/v2/models/a/versions/9/stats") == (400, {"error": "requested model version is not available"})
    assert bench.statistics("a", "9").code == 3


def raising(exc: Exception) -> Callable[[Any], Any]:
    def answer(asked: Any) -> Any:
        raise exc

    return answer


def test_a_server_that_has_just_died_is_left_out(bench: Bench) -> None:
    bench.tell(s0=[counted("a", 3)], s1=[counted("a", 4)])
    bench.upstreams["s0"].http.answer = raising(UpstreamUnavailable("connection refused"))
    assert bench.ask("GET", "/v2/models/a/stats")[1]["model_stats"][0]["inference_count"] == 4
    bench.upstreams["s1"].http.answer = bench.upstreams["s0"].http.answer
    with pytest.raises(UpstreamUnavailable):
        bench.ask("GET", "/v2/models/a/stats")


class Frontend:
    """The whole HTTP frontend, with a route `r` to version 1 of `a`."""

    def __init__(self, bench: Bench, *scopes: str) -> None:
        """With `scopes`, callers must send the key that has them."""
        routes, keys = (Route("r", "a", "1"), Route("cold-one", "cold")), (api_key(1, *scopes),) if scopes else ()
        governed = governance(known_state(routes=routes, keys=keys, tenants=(Tenant("team"),)), authentication=bool(scopes))
        catalogue = FleetCatalogue(bench.state, bench.servers)
        dispatch = FleetDispatcher(ModelRouter(bench.state, ReplicaLoader(bench.state, {}), wait_s=1.0), catalogue=catalogue)
        inference = InferenceService(
            servers=bench.servers, recorder=FakeRecorder(), governance=governed, default_timeout_s=5.0, dispatch=dispatch
        )
        kserve = KServeServices(
            inference=inference,
            access=governed.access,
            servers=bench.servers,
            models=FakeModels(),
            budget=BodyBudget(1 << 20),
            limits=BodyLimits(),
            read_timeout_s=5.0,
        )
        self.v2, self.grpc = V2Http(kserve), V2Grpc(kserve)
        self.servers = bench.servers

    def ask(self, method: bytes, target: bytes, body: bytes = b"") -> HttpAnswer:
        key = [(b"x-api-key", key_text(1).encode())]
        try:
            answer = run(self.v2.answer(HttpRequest(method, target, key, body=body, peer_is_local=True)))
        except ControlPlaneError as error:
            return render_error(error)
        assert isinstance(answer, HttpAnswer)
        return answer

    def call(self, method: str, message: Any) -> GrpcAnswer:
        handler, principal = self.grpc.handler_for(GrpcHead(SERVICE + method, api_key=key_text(1)), peer="127.0.0.1", peer_is_local=True)
        assert handler.unary is not None
        return run(handler.unary(GrpcCall(GrpcHead(SERVICE + method), frame_message(message.SerializeToString()), principal)))


@pytest.mark.parametrize(
    ("scopes", "seen"),
    [
        pytest.param(("infer:b",), ["b"], id="one"),
        pytest.param(("infer:r",), ["a"], id="by a route"),
        pytest.param(("infer:none",), [], id="none"),
        pytest.param(("infer:*",), ["a", "b"], id="all"),
    ],
)
def test_a_key_sees_of_all_statistics_those_of_its_models(bench: Bench, scopes: tuple[str, ...], seen: list[str]) -> None:
    bench.tell(s0=[counted("a", 3), counted("b", 1)], s1=[counted("a", 4)])
    frontend = Frontend(bench, *scopes)
    assert [each["name"] for each in orjson.loads(frontend.ask(b"GET", b"/v2/models/stats").body)["model_stats"]] == seen
    found = read(frontend.call("ModelStatistics", service_pb2.ModelStatisticsRequest()), service_pb2.ModelStatisticsResponse)
    assert [(each.name, each.inference_count) for each in found.model_stats] == [(name, {"a": 7, "b": 1}[name]) for name in seen]


def test_what_a_route_stands_for_is_told_of(bench: Bench) -> None:
    bench.tell(s0=[counted("a", 3)], s1=[counted("a", 4)])
    frontend = Frontend(bench)
    (found,) = orjson.loads(frontend.ask(b"GET", b"/v2/models/r/stats").body)["model_stats"]
    assert (found["name"], found["inference_count"]) == ("a", 7)
    assert {request.target for each in bench.upstreams.values() for request in each.http.requests} == {b"/v2/models/a/versions/1/stats"}
    (found,) = orjson.loads(frontend.ask(b"GET", b"/v2/models/cold-one/stats").body)["model_stats"]
    assert found["name"] == "cold"
    assert frontend.ask(b"GET", b"/v2/models/cold-one/ready").status == 200
    assert frontend.ask(b"HEAD", b"/v2/models/nonesuch/ready").status == 400


def test_the_frontend_asks_the_fleet_what_is_the_fleets(bench: Bench) -> None:
    frontend = Frontend(bench)
    listed = orjson.loads(frontend.ask(b"POST", b"/v2/repository/index", b'{"ready":false}').body)
    assert [line["name"] for line in listed] == ["a", "b", "cold"]
    assert orjson.loads(frontend.ask(b"POST", b"/v2/repository/any/index", b'{"ready":true}').body)[-1]["name"] == "b"
    assert frontend.ask(b"POST", b"/v2/repository/index", b'{"ready":"x"}').status == 500, "as Triton"
    bench.upstreams["s0"].http.answer = lambda request: make_answer(200, b"of s0")
    assert frontend.ask(b"GET", b"/v2/models/b").body == b"of s0"


def test_other_calls_are_one_servers(bench: Bench) -> None:
    for path in ("/v2/models/a", "/v2/models/a/config", "/v2"):
        assert run(bench.http.answer(HttpRequest(b"GET", path.encode()), read_route(b"GET", path.encode()))) is None
