"""What callers write for a model's name, on the real Triton: it opens nothing, grows nothing, and a failure is still told by its model.

Triton 24.10 cuts a gRPC name at a NUL: with the scope `infer:*_public`, `echo<NUL>_public` ran `echo`, and made labels, lines and sums
of its own, without bound.
"""

from __future__ import annotations

import json
import re
import struct
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from control_plane.core.model import UNKNOWN_MODEL
from control_plane.triton.embedded.installation import ensure_installed
from control_plane.tuning.adapters.perf_analyzer import AnalyzerRun, PerfAnalyzer, arguments
from tests.e2e.accounts import Administrator, make_first_key
from tests.e2e.processes import triton_url
from tests.e2e.tidegate import PROJECT, Tidegate, start, wait_for

MADE_UP = 60
MODELS = ("echo", "slow", "text_embedding", "text_encoder")
FINE = {"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [0]}]}


@dataclass
class Bench:
    """A gateway with keys before the session's Triton, and what it logs."""

    gateway: Tidegate
    triton_grpc: str
    administrator: Administrator
    admin_key: str
    keys: dict[str, str]
    log: Path

    @contextmanager
    def stub(self, address: str | None = None) -> Iterator[Any]:
        with grpc.insecure_channel(address or self.gateway.address("grpc")) as channel:
            yield service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def metadata(self, key: str, **more: str) -> tuple[tuple[str, str], ...]:
        return (("x-api-key", self.keys[key]), *((name.replace("_", "-"), value) for name, value in more.items()))

    def http(self, key: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        fields = {"x-api-key": self.keys[key], "content-type": "application/json"}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"http://{self.gateway.address('http')}{path}", data, fields)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as exc:
            return exc.code, json.loads(exc.read() or b"null")

    def page(self) -> bytes:
        request = urllib.request.Request(self.gateway.endpoints["metrics"], headers={"x-api-key": self.admin_key})
        with urllib.request.urlopen(request, timeout=30) as page:
            body: bytes = page.read()
        return body

    def used(self) -> set[str]:
        """The models that usage is booked under."""
        return {row["model"] for row in self.administrator.do("GET", "/usage?by=model&since=1d")["rows"]}

    def line(self, request_id: str) -> dict[str, Any]:
        """Return the request's line of the request log, once it is there."""
        found: list[dict[str, Any]] = []

        def is_there() -> bool:
            lines = map(json.loads, self.log.read_text().splitlines())
            found[:] = [line for line in lines if line["request_id"] == request_id]
            return bool(found)

        wait_for(is_there, timeout_s=30, what=f"the line of {request_id}")
        assert len(found) == 1, found
        return found[0]


@pytest.fixture(scope="module")
def bench(tidegate: Tidegate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    state = tmp_path_factory.mktemp("names")
    admin_key, log = make_first_key(state), state / "requests.jsonl"
    gateway = start(state, "--authentication", "--triton-url", triton_url(tidegate), "--request-log", str(log))
    try:
        administrator = Administrator(gateway, admin_key)
        administrator.make_tenant("team")
        administrator.make_tenant("slowed", requests_per_s=0.001, burst=1)
        administrator.do("PUT", "/routes/echo-route", {"model": "echo"})
        scopes = {"public": "infer:*_public", "echo": "infer:echo", "all": "infer:*"}
        keys = {name: administrator.make_key("team", scope) for name, scope in scopes.items()}
        keys["slowed"] = administrator.make_key("slowed", "infer:*")
        triton_grpc = f"127.0.0.1:{tidegate.triton_port('GRPCInferenceService')}"
        bench = Bench(gateway, triton_grpc, administrator, admin_key, keys, log)
        wait_for(lambda: bench.http("all", "/v2/models/echo/ready")[0] == 200, timeout_s=30, what="the new key")
        wait_for(lambda: bench.http("slowed", "/v2/models/echo/ready")[0] == 200, timeout_s=30, what="the last key")
        wait_for(lambda: bench.http("all", "/v2/models/echo-route/ready")[0] == 200, timeout_s=30, what="the route")
        yield bench
    finally:
        assert gateway.stop() == 0, gateway.said()


def infer(name: str, *, request_id: str = "", version: str = "", datatype: str = "FP32") -> Any:
    request = service_pb2.ModelInferRequest(model_name=name, model_version=version, id=request_id, raw_input_contents=[bytes(4)])
    request.inputs.add(name="INPUT0", datatype=datatype, shape=[1, 1])
    return request


ATTACKS = [
    pytest.param("ModelInfer", infer("echo\0_public"), id="infer"),
    pytest.param("ModelReady", service_pb2.ModelReadyRequest(name="echo\0_public"), id="ready"),
    pytest.param("ModelMetadata", service_pb2.ModelMetadataRequest(name="echo\0_public"), id="metadata"),
    pytest.param("ModelConfig", service_pb2.ModelConfigRequest(name="echo\0_public"), id="config"),
    pytest.param("ModelStatistics", service_pb2.ModelStatisticsRequest(name="echo\0_public"), id="statistics"),
]


@pytest.mark.parametrize(("method", "message"), ATTACKS)
def test_a_nul_does_not_escape_a_keys_scopes(bench: Bench, method: str, message: Any) -> None:
    with bench.stub(bench.triton_grpc) as straight:
        getattr(straight, method)(message, timeout=30)  # Triton itself takes it for `echo`
    with bench.stub() as stub, pytest.raises(grpc.RpcError) as refused:
        getattr(stub, method)(message, timeout=30, metadata=bench.metadata("public"))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_nor_does_it_on_a_stream(bench: Bench) -> None:
    with bench.stub() as stub:
        (answer,) = stub.ModelStreamInfer(iter([infer("echo\0_public")]), timeout=30, metadata=bench.metadata("public"))
    assert "cannot be a model's name" in answer.error_message
    assert not answer.infer_response.outputs


@pytest.mark.timeout(180)
def test_names_that_callers_make_up_grow_nothing(bench: Bench) -> None:
    assert bench.http("all", "/v2/models/echo/infer", FINE)[0] == 200
    with bench.stub() as stub:
        for number in range(MADE_UP):
            for name in (f"made-up-{number}", f"echo\0{number}", f"nul\0{number}"):
                with pytest.raises(grpc.RpcError):
                    stub.ModelInfer(infer(name), timeout=30, metadata=bench.metadata("all"))
            assert bench.http("all", f"/v2/models/made-up-{number}/infer", FINE)[0] == 404

    page = bench.page()
    ours = [line for line in page.decode().splitlines() if line.startswith("tidegate_")]
    assert {label for line in ours for label in re.findall(r'model="([^"]*)"', line)} <= {UNKNOWN_MODEL, *MODELS}
    assert b"\0" not in page
    assert b"made-up" not in page
    wait_for(lambda: "echo" in bench.used(), what="the usage being written")
    used = bench.used()
    assert used <= {UNKNOWN_MODEL, *MODELS}
    lines = [json.loads(line) for line in bench.log.read_text().splitlines()]
    assert {line["model"] for line in lines} | {line["route"] for line in lines} <= {UNKNOWN_MODEL, *used, "echo-route"}


def test_over_http_a_failure_leaves_its_model_and_all_that_was_told(bench: Bench) -> None:
    wrong = {"inputs": [{**FINE["inputs"][0], "name": "NOTHING"}], "id": "http-wrong"}
    slow = {"inputs": [{"name": "SECONDS", "shape": [1, 1], "datatype": "FP32", "data": [3]}], "id": "http-late"}
    cases = (
        (bench.http("all", "/v2/models/echo-route/infer", wrong), "http-wrong", 400, "echo-route", "echo", "triton"),
        (bench.http("all", "/v2/models/slow/infer", slow, tidegate_timeout_ms="100"), "http-late", 504, "slow", "slow", "triton"),
        (
            bench.http("public", "/v2/models/echo/infer", {**FINE, "id": "http-denied"}, x_request_id="denied"),
            "denied",
            403,
            "echo",
            "echo",
            "",
        ),
        (bench.http("all", "/v2/models/echo/infer", [], x_request_id="unread"), "unread", 500, "echo", "echo", ""),
        (bench.http("all", "/v2/models/nowhere/infer", {**FINE, "id": "lost"}), "lost", 404, UNKNOWN_MODEL, UNKNOWN_MODEL, "triton"),
    )
    for (status, body), request_id, expected, route, model, server in cases:
        line = bench.line(request_id)
        assert status == expected, (request_id, body)
        told = (line["route"], line["model"], line["status"], line["server"], line["error"])
        assert told == (route, model, status, server, body["error"][:300]), request_id
        assert line["outcome"] != "answered"


def test_so_over_grpc_and_on_a_stream(bench: Bench) -> None:
    with bench.stub() as stub:
        for request, key, code, model in (
            (infer("echo", request_id="grpc-wrong", datatype="INT32"), "all", grpc.StatusCode.INVALID_ARGUMENT, "echo"),
            (infer("echo", request_id="grpc-denied"), "public", grpc.StatusCode.PERMISSION_DENIED, "echo"),
            (infer("nowhere", request_id="grpc-lost"), "all", grpc.StatusCode.NOT_FOUND, UNKNOWN_MODEL),
        ):
            with pytest.raises(grpc.RpcError) as failed:
                stub.ModelInfer(request, timeout=30, metadata=bench.metadata(key, x_request_id=f"head-{request.id}"))
            assert failed.value.code() is code
            refused_unread = code is grpc.StatusCode.PERMISSION_DENIED
            line = bench.line(f"head-{request.id}" if refused_unread else request.id)
            assert (line["route"], line["model"], line["status"]) == (model, model, code.value[0])
            assert line["error"] == failed.value.details()[:300]
        late = service_pb2.ModelInferRequest(model_name="slow", id="grpc-late", raw_input_contents=[struct.pack("<f", 3.0)])
        late.inputs.add(name="SECONDS", datatype="FP32", shape=[1, 1])
        streamed = iter([infer("echo", request_id="stream-wrong", datatype="INT32"), infer("echo", request_id="stream-fine")])
        errors = [answer.error_message for answer in stub.ModelStreamInfer(streamed, timeout=30, metadata=bench.metadata("all"))]
        with pytest.raises(grpc.RpcError):
            stub.ModelInfer(late, timeout=0.3, metadata=bench.metadata("all"))
    wrong, fine, abandoned = bench.line("stream-wrong"), bench.line("stream-fine"), bench.line("grpc-late")
    assert (wrong["model"], wrong["status"], wrong["error"], wrong["server"]) == ("echo", 3, errors[0], "triton")
    assert (fine["model"], fine["status"], fine["error"], fine["outcome"]) == ("echo", 0, "", "answered")
    assert (abandoned["model"], abandoned["server"]) == ("slow", "triton")
    assert abandoned["outcome"] in ("abandoned", "deadline_exceeded")


def test_so_beyond_a_limit_and_of_embeddings(bench: Bench) -> None:
    bench.http("slowed", "/v2/models/echo/infer", FINE)  # all that it may
    assert bench.http("slowed", "/v2/models/echo/infer", FINE, x_request_id="limit-http")[0] == 429
    with bench.stub() as stub, pytest.raises(grpc.RpcError):
        stub.ModelInfer(infer("echo"), timeout=30, metadata=bench.metadata("slowed", x_request_id="limit-grpc"))
    text = {"model": "text_embedding", "input": "a"}
    assert bench.http("slowed", "/v1/embeddings", text, x_request_id="limit-v1")[0] == 429
    assert bench.http("all", "/v1/embeddings", {**text, "dimensions": 7}, x_request_id="wrong-v1")[0] == 400
    assert bench.http("all", "/v1/embeddings", {**text, "model": "echo"}, x_request_id="other-v1")[0] == 400
    assert bench.http("all", "/v1/embeddings", text, x_request_id="fine-v1")[0] == 200
    for request_id, model, status in (
        ("limit-http", "echo", 429), ("limit-grpc", "echo", 8), ("limit-v1", "text_embedding", 429), ("wrong-v1", "text_embedding", 400),
        ("other-v1", "echo", 400), ("fine-v1", "text_embedding", 200),
    ):  # fmt: skip
        line = bench.line(request_id)
        assert (line["route"], line["model"], line["status"], bool(line["error"])) == (model, model, status, status not in (0, 200))


def test_each_key_sees_statistics_of_what_it_may_call(bench: Bench) -> None:
    with bench.stub() as stub:
        for key, seen in (("echo", {"echo"}), ("public", set())):
            status, found = bench.http(key, "/v2/models/stats")
            assert (status, {each["name"] for each in found["model_stats"]}) == (200, seen)
            answer = stub.ModelStatistics(service_pb2.ModelStatisticsRequest(), timeout=30, metadata=bench.metadata(key))
            assert {each.name for each in answer.model_stats} == seen
        assert {"echo", "slow"} < {each["name"] for each in bench.http("all", "/v2/models/stats")[1]["model_stats"]}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer_runs_with_a_key_for_its_model_alone(bench: Bench, protocol: str) -> None:
    cache = PROJECT / ".cache"
    analyzer = PerfAnalyzer(cache, ensure_installed(cache).libs)
    load = AnalyzerRun("echo", bench.gateway.address(protocol), protocol, 2, shapes=("INPUT0:16", "INPUT1:1"), request_count=100)
    command = [str(analyzer._binary), *arguments(load), "-H", f"x-api-key:{bench.keys['echo']}"]
    done = subprocess.run(command, env=analyzer._environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Throughput" in done.stdout
