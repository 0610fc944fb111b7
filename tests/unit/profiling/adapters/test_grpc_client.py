"""gRPC clients of one model, before a server of gRPC's own library."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from control_plane.core.errors import ControlPlaneError, InvalidRequest, ObjectNotFound, UpstreamUnavailable
from control_plane.profiling.adapters.grpc_client import GrpcModelClient
from control_plane.profiling.inputs import request_for
from control_plane.profiling.stages import Counted
from control_plane.protocols.kserve.messages import model_config_pb2, service_pb2, service_pb2_grpc
from tests.tls_files import Authority, needs_openssl

TEXTS = {"inputs": [{"name": "T", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}


class Gateway(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """One model "m", which has computed one request before; `refusal` is what inferences are answered with."""

    def __init__(self) -> None:
        self.inferred: list[Any] = []
        self.keys: list[Any] = []
        self.peers: set[str] = set()
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.streamed: list[Any] = []
        """Responses to each request of a stream."""
        self.may_answer = threading.Event()
        self.may_answer.set()

    def ServerLive(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 - the protocol's name
        self.peers.add(context.peer())
        return service_pb2.ServerLiveResponse(live=True)

    def ModelMetadata(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        tensor = service_pb2.ModelMetadataResponse.TensorMetadata(name="T", datatype="BYTES", shape=[-1, 1])
        return service_pb2.ModelMetadataResponse(name=request.name, inputs=[tensor])

    def ModelConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        config = model_config_pb2.ModelConfig(name=request.name)
        config.ensemble_scheduling.step.add(model_name="first")
        return service_pb2.ModelConfigResponse(config=config)

    def ModelStatistics(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        stats = service_pb2.InferStatistics(
            success=service_pb2.StatisticDuration(count=1, ns=9),
            **{name: service_pb2.StatisticDuration() for name in ("queue", "compute_input", "compute_infer", "compute_output")},
        )
        return service_pb2.ModelStatisticsResponse(model_stats=[service_pb2.ModelStatistics(name=request.name, inference_stats=stats)])

    def ModelInfer(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.may_answer.wait()
        self.inferred.append(request)
        said = dict(context.invocation_metadata())
        self.keys.append(said.get("authorization"))
        if said.get("tidegate-timing") == "1":
            context.set_trailing_metadata((("server-timing", "total;dur=2.5"),))
        if self.refusal is not None:
            context.abort(*self.refusal)
        return service_pb2.ModelInferResponse(model_name=request.model_name)

    def ModelStreamInfer(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        for request in requests:
            self.inferred.append(request)
            yield from self.streamed
        if self.refusal is not None:
            context.abort(*self.refusal)


def response(*tokens: int) -> Any:
    answer = service_pb2.ModelStreamInferResponse()
    answer.infer_response.outputs.add(name="text_output", datatype="BYTES")
    answer.infer_response.raw_output_contents.append(b"\1\0\0\0a")
    if tokens:
        answer.infer_response.outputs.add(name="num_output_tokens", datatype="UINT32", shape=[len(tokens)])
        answer.infer_response.raw_output_contents.append(struct.pack(f"<{len(tokens)}I", *tokens))
    return answer


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@contextmanager
def serving(gateway: Gateway, place: str, shown: grpc.ServerCredentials | None = None) -> Iterator[int]:
    """Serve there, and yield the port."""
    server = grpc.server(ThreadPoolExecutor(4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(gateway, server)
    port = server.add_insecure_port(place) if shown is None else server.add_secure_port(place, shown)
    server.start()
    yield port
    gateway.may_answer.set()
    server.stop(None).wait()


@pytest.fixture(params=["port", "socket"])
def url(request: pytest.FixtureRequest, gateway: Gateway, tmp_path: Path) -> Iterator[str]:
    place = f"unix:{tmp_path}/g.sock" if request.param == "socket" else "127.0.0.1:0"
    with serving(gateway, place) as port:
        yield place if request.param == "socket" else f"http://127.0.0.1:{port}"


def test_a_model_is_described_as_over_http(url: str, gateway: Gateway) -> None:
    with closing(GrpcModelClient(url, "m", {"Authorization": "Bearer k"})) as client:
        client.ping()
        (tensor,) = request_for(client.metadata(), random.Random(1))["inputs"]
        assert (tensor["name"], tensor["datatype"], tensor["shape"]) == ("T", "BYTES", [1, 1])
        assert [each["model_name"] for each in client.config()["ensemble_scheduling"]["step"]] == ["first"]
        assert Counted.of(client.statistics("m")) == Counted(
            1, 9, dict.fromkeys(("queue", "compute_input", "compute_infer", "compute_output"), 0)
        )
        assert client.infer(client.encoded(TEXTS)) == {"total": 2.5}
    assert [list(each.raw_input_contents) for each in gateway.inferred] == [[b"\1\0\0\0a"]]
    assert gateway.keys == ["Bearer k"]


@pytest.mark.parametrize("url", ["port"], indirect=True)  # all peers of a Unix socket have one name
def test_each_client_has_a_connection_of_its_own(url: str, gateway: Gateway) -> None:
    with closing(GrpcModelClient(url, "m", {})) as one, closing(GrpcModelClient(url, "m", {})) as other:
        one.ping()
        other.ping()
    assert len(gateway.peers) == 2


@pytest.mark.parametrize(
    ("code", "raised", "said"),
    [
        pytest.param(grpc.StatusCode.NOT_FOUND, ObjectNotFound, r"^why \(gRPC NOT_FOUND\)$", id="unknown model"),
        pytest.param(grpc.StatusCode.UNAVAILABLE, UpstreamUnavailable, r"^why \(gRPC UNAVAILABLE\)$", id="not ready"),
        pytest.param(grpc.StatusCode.PERMISSION_DENIED, InvalidRequest, r"^why \(gRPC PERMISSION_DENIED\)$", id="no permission"),
        pytest.param(grpc.StatusCode.UNAUTHENTICATED, InvalidRequest, "why .*TIDEGATE_API_KEY", id="no key"),
    ],
)
def test_a_refusal_is_told_in_its_own_words(
    url: str, gateway: Gateway, code: grpc.StatusCode, raised: type[ControlPlaneError], said: str
) -> None:
    gateway.refusal = (code, "why")
    with closing(GrpcModelClient(url, "m", {})) as client, pytest.raises(raised, match=said):
        client.infer(client.encoded(TEXTS))


def test_one_that_says_nothing_is_not_waited_for_without_end(url: str, gateway: Gateway) -> None:
    gateway.may_answer.clear()
    with (
        closing(GrpcModelClient(url, "m", {}, timeout_s=0.05)) as client,
        pytest.raises(UpstreamUnavailable, match=r"no answer from .*Deadline Exceeded; is `tidegate serve` running there"),
    ):
        client.infer(client.encoded(TEXTS))


def test_of_a_stream_each_response_is_heard_with_its_tokens(url: str, gateway: Gateway) -> None:
    gateway.streamed, heard = [response(1), response(2, 3), response()], list[int | None]()
    with closing(GrpcModelClient(url, "m", {})) as client:
        assert client.stream(client.encoded_stream(TEXTS), heard.append) == {}
    assert heard == [1, 5, None]
    assert [list(each.raw_input_contents) for each in gateway.inferred] == [[b"\1\0\0\0a"]]


def test_an_error_in_a_stream_is_told(url: str, gateway: Gateway) -> None:
    gateway.streamed, heard = [response(1), service_pb2.ModelStreamInferResponse(error_message="oops")], list[int | None]()
    with closing(GrpcModelClient(url, "m", {})) as client:
        with pytest.raises(InvalidRequest, match=r"^oops \(in the stream\)$"):
            client.stream(client.encoded_stream(TEXTS), heard.append)
        gateway.streamed, gateway.refusal = [], (grpc.StatusCode.PERMISSION_DENIED, "why")
        with pytest.raises(InvalidRequest, match=r"^why \(gRPC PERMISSION_DENIED\)$"):
            client.stream(client.encoded_stream(TEXTS), heard.append)
    assert heard == [1]


class Somebody(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Server of gRPC that answers every stream with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    def service(self, details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(lambda requests, context: iter([self.answer]))


_COUNTED = response(1)
_COUNTED.infer_response.raw_output_contents[-1] = b"12345"


@pytest.mark.parametrize("answer", [b"\xff\xff", _COUNTED.SerializeToString()], ids=["no message", "no numbers"])
def test_what_is_no_response_is_told(answer: bytes) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((Somebody(answer),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with (
        closing(GrpcModelClient(f"http://127.0.0.1:{port}", "m", {})) as client,
        pytest.raises(InvalidRequest, match="no response of a model"),
    ):
        client.stream(client.encoded_stream(TEXTS), lambda tokens: None)
    server.stop(None).wait()


def test_nobody_there_says_what_to_check() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = GrpcModelClient(f"http://127.0.0.1:{unused.getsockname()[1]}", "m", {})
        with closing(client), pytest.raises(UpstreamUnavailable, match=r"no answer from .* is `tidegate serve` running there"):
            client.ping()


@pytest.mark.parametrize("url", ["127.0.0.1:8001", "ftp://127.0.0.1:1", "http://", ""])
def test_what_is_no_url_is_told_with_what_would_be_one(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"is no URL to ask at: expected http://HOST:PORT, https://HOST:PORT or unix:PATH"):
        GrpcModelClient(url, "m", {})


@needs_openssl
def test_it_trusts_the_authorities_that_ssl_cert_file_names(gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("gateway")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    shown = grpc.ssl_server_credentials([(own.key.read_bytes(), own.certificate.read_bytes())])
    with serving(gateway, "127.0.0.1:0", shown) as port, closing(GrpcModelClient(f"https://127.0.0.1:{port}", "m", {})) as client:
        client.ping()
    assert gateway.peers
