"""Triton's extensions over HTTP, through the gateway and straight to Triton: what a client sees must be the same."""

from __future__ import annotations

import gzip
import json
import re
import socket
import uuid
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from tests.e2e import raw_http
from tests.e2e import tidegate as servers
from tests.e2e.conftest import MODELS
from tests.e2e.tidegate import LONG_S, Tidegate, wait_for

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    """One that takes shared memory, with models for text."""
    loads = [part for name in ("echo", "slow", "repeat_text", "echo_text") for part in ("--load", name)]
    flags = ["--model-repository", str(MODELS), "--allow-shared-memory", *loads]
    running = servers.start(tmp_path_factory.mktemp("protocol"), *flags)
    yield running
    assert running.stop() == 0, running.said()


@pytest.fixture
def client(gateway: Tidegate) -> Iterator[tritonclient.http.InferenceServerClient]:
    with tritonclient.http.InferenceServerClient(gateway.address("http")) as client:
        yield client


def doors(gateway: Tidegate) -> tuple[int, int]:
    return gateway.triton_port("HTTPService"), gateway.port("http")


def both(gateway: Tidegate, method: str, path: str, body: bytes = b"") -> tuple[bytes, bytes]:
    """The answers to one request, straight and through the gateway, which shows Triton that it may."""
    straight, through = doors(gateway)
    return raw_http.exchange(straight, method, path, body, gateway.control_fields()), raw_http.exchange(through, method, path, body)


def to_the_end(port: int, path: str, body: bytes, *, version: str = "1.1", fields: str = "") -> bytes:
    """Everything that a connection says which is closed after its answer."""
    head = f"POST {path} HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\n{fields}Content-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port), timeout=LONG_S) as connection:
        connection.sendall(head + body)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def without_close(answer: bytes) -> bytes:
    return answer.replace(b"Connection: close\r\n", b"")


class TestGenerate:
    @pytest.mark.parametrize(
        ("path", "body"),
        [
            pytest.param("echo_text/generate", {"text": "hi"}, id="one answer"),
            pytest.param("echo_text/versions/1/generate", {"text": "hi", "id": "7", "parameters": {"a": 1}}, id="version, id, parameters"),
            pytest.param("repeat_text/generate", {"text": "hi", "count": 1}, id="a decoupled model that answers once"),
            pytest.param("repeat_text/generate", {"text": "hi", "count": 2}, id="a decoupled model that answers twice"),
            pytest.param("repeat_text/generate_stream", {"text": "hi", "count": 3}, id="three events"),
            pytest.param("repeat_text/generate_stream", {"text": "hi", "count": 0}, id="no event"),
            pytest.param("repeat_text/generate_stream", {"text": "hi", "count": -1}, id="an event and an error"),
            pytest.param("echo_text/generate_stream", {"text": "hi"}, id="an ordinary model's event"),
            pytest.param("nowhere/generate", {"text": "hi"}, id="unknown model"),
            pytest.param("nowhere/generate_stream", {"text": "hi"}, id="unknown model's stream"),
            pytest.param("repeat_text/generate_stream", {"text": "hi"}, id="a missing input"),
            pytest.param("echo_text/generate", {"text": ["a", "b"]}, id="another shape"),
            pytest.param("echo_text/generate", {"text": 3}, id="another type"),
            pytest.param("echo_text/generate", {"text": "long " * 100_000}, id="a long text"),
        ],
    )
    def test_says_what_triton_says(self, gateway: Tidegate, path: str, body: dict[str, Any]) -> None:
        straight, through = (without_close(to_the_end(port, f"/v2/models/{path}", json.dumps(body).encode())) for port in doors(gateway))
        assert through == straight

    def test_an_old_client_gets_plain_events_until_the_end(self, gateway: Tidegate) -> None:
        body = json.dumps({"text": "hi", "count": 2}).encode()
        answer = to_the_end(gateway.port("http"), "/v2/models/repeat_text/generate_stream", body, version="1.0")
        head, _, events = answer.partition(b"\r\n\r\n")
        assert b"chunked" not in head
        assert events == b'data: {"model_name":"repeat_text","model_version":"1","text":"hi"}\n\n' * 2

    def test_a_client_that_leaves_frees_its_stream(self, gateway: Tidegate) -> None:
        body = json.dumps({"text": "x" * 10_000, "count": 20_000}).encode()
        head = b"POST /v2/models/repeat_text/generate_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.create_connection(("127.0.0.1", gateway.port("http"))) as connection:
            connection.sendall(head + body)
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        wait_for(lambda: "tidegate_requests_in_flight 0.0" in _metrics(gateway), what="the stream being given up")


def _metrics(gateway: Tidegate) -> str:
    return raw_http.exchange(gateway.port_of_metrics(), "GET", "/metrics").decode()


class TestModels:
    def test_load_and_unload(self, client: tritonclient.http.InferenceServerClient) -> None:
        client.unload_model("echo_text")
        wait_for(lambda: not client.is_model_ready("echo_text"), what="the model being unloaded")
        client.load_model("echo_text")
        assert client.is_model_ready("echo_text")

    def test_load_with_a_config_and_files_of_ones_own(self, gateway: Tidegate, client: tritonclient.http.InferenceServerClient) -> None:
        config = json.dumps(client.get_model_config("echo_text"))
        source = (MODELS / "echo_text" / "1" / "model.py").read_bytes().replace(b".as_numpy()", b'.as_numpy() + b"!"')
        body = json.dumps({"parameters": {"config": config, "file:1/model.py": b64encode(source).decode()}}).encode()
        client.unload_model("echo_text")
        wait_for(lambda: not client.is_model_ready("echo_text"), what="the model being unloaded")
        try:
            answer = raw_http.exchange(gateway.port("http"), "POST", "/v2/repository/models/echo_text/load", body)
            assert (raw_http.status(answer), _said(gateway)) == (200, "hi!")
        finally:
            client.unload_model("echo_text")
            wait_for(lambda: not client.is_model_ready("echo_text"), what="the model being unloaded")
            client.load_model("echo_text")
        assert _said(gateway) == "hi"

    @pytest.mark.parametrize("name", ["nowhere", "broken"])
    def test_a_failed_load_says_why(self, gateway: Tidegate, client: tritonclient.http.InferenceServerClient, name: str) -> None:
        path = f"/v2/repository/models/{name}/load"
        straight, through = both(gateway, "POST", path)
        assert raw_http.status(through) == raw_http.status(straight)
        with pytest.raises(InferenceServerException, match="failed"):
            client.load_model(name)

    def test_unloading_an_unknown_one_is_no_error(self, client: tritonclient.http.InferenceServerClient) -> None:
        client.unload_model("nowhere")


def _said(gateway: Tidegate) -> str:
    answer = to_the_end(gateway.port("http"), "/v2/models/echo_text/generate", b'{"text":"hi"}', version="1.0")
    text: str = json.loads(answer.partition(b"\r\n\r\n")[2])["text"]
    return text


SAME = [
    ("GET", "/v2/trace/setting", b""),
    ("GET", "/v2/models/echo/trace/setting", b""),
    ("POST", "/v2/trace/setting", b'{"trace_rate":"7"}'),
    ("POST", "/v2/trace/setting", b'{"trace_rate":null}'),
    ("POST", "/v2/trace/setting", b'{"trace_level":3}'),
    ("GET", "/v2/logging", b""),
    ("POST", "/v2/logging", b'{"log_verbose_level":0}'),
    ("POST", "/v2/logging", b'{"log_verbose_level":-1}'),
    ("GET", "/v2/systemsharedmemory/status", b""),
    ("GET", "/v2/systemsharedmemory/region/r/status", b""),
    ("POST", "/v2/systemsharedmemory/region/r/register", b'{"key":"/nowhere","byte_size":8}'),
    ("POST", "/v2/systemsharedmemory/region/r/unregister", b""),
    ("POST", "/v2/systemsharedmemory/unregister", b""),
    ("GET", "/v2/cudasharedmemory/status", b""),
    ("POST", "/v2/cudasharedmemory/region/r/register", b'{"raw_handle":{"b64":"xx"},"device_id":0,"byte_size":8}'),
    ("POST", "/v2/repository/any/index", b"[]"),
    ("POST", "/v2/repository/any/models/echo/load", b""),
]


@pytest.mark.parametrize(("method", "path", "body"), SAME)
def test_administration_is_tritons_own(gateway: Tidegate, method: str, path: str, body: bytes) -> None:
    straight, through = both(gateway, method, path, body)
    assert through == straight


@pytest.mark.parametrize("path", ["/v2", "/v2/models/echo", "/v2/models/echo/ready", "/v2/models/nowhere", "/v2/health/ready"])
def test_head_is_get_without_its_body(gateway: Tidegate, path: str) -> None:
    get = raw_http.exchange(gateway.port("http"), "GET", path)
    request = f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", gateway.port("http")), timeout=LONG_S) as connection:
        connection.sendall(request + request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answers = without_close(b"".join(iter(lambda: connection.recv(1 << 16), b"")))
    assert answers == (get.partition(b"\r\n\r\n")[0] + b"\r\n\r\n") * 2


class TestSharedMemory:
    def test_inputs_and_outputs_lie_in_it(self, client: tritonclient.http.InferenceServerClient) -> None:
        key, size = f"/tidegate-{uuid.uuid4().hex}", VALUES.nbytes
        region = shm.create_shared_memory_region("region", key, 2 * size)
        try:
            shm.set_shared_memory_region(region, [VALUES])
            client.register_system_shared_memory("region", key, 2 * size)
            assert [each["name"] for each in client.get_system_shared_memory_status()] == ["region"]
            tensor = tritonclient.http.InferInput("INPUT0", VALUES.shape, "FP32")
            tensor.set_shared_memory("region", size)
            output = tritonclient.http.InferRequestedOutput("OUTPUT0")
            output.set_shared_memory("region", size, offset=size)
            result = client.infer("echo", [tensor], outputs=[output])
            assert "data" not in result.get_output("OUTPUT0")
            np.testing.assert_array_equal(shm.get_contents_as_numpy(region, np.float32, VALUES.shape, offset=size), VALUES)
            client.unregister_system_shared_memory("region")
            assert client.get_system_shared_memory_status() == []
        finally:
            shm.destroy_shared_memory_region(region)

    def test_is_off_by_default(self, tidegate: Tidegate) -> None:
        with tritonclient.http.InferenceServerClient(tidegate.address("http")) as client:
            with pytest.raises(InferenceServerException, match="--allow-shared-memory"):
                client.get_system_shared_memory_status()
            tensor = tritonclient.http.InferInput("INPUT0", VALUES.shape, "FP32")
            tensor.set_shared_memory("region", VALUES.nbytes)
            with pytest.raises(InferenceServerException, match="--allow-shared-memory"):
                client.infer("echo", [tensor])


class TestCompression:
    @pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
    def test_both_ways(self, client: tritonclient.http.InferenceServerClient, algorithm: str) -> None:
        values = np.tile(VALUES, (4, 1000))
        tensor = tritonclient.http.InferInput("INPUT0", values.shape, "FP32")
        tensor.set_data_from_numpy(values)
        result = client.infer("echo", [tensor], request_compression_algorithm=algorithm, response_compression_algorithm=algorithm)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), values)

    @pytest.mark.parametrize("accepts", ["gzip", "deflate", "gzip, deflate", "deflate;q=1, gzip;q=0", "br", "*", "identity"])
    @pytest.mark.parametrize("model", ["echo", "nowhere"])
    def test_triton_chooses(self, gateway: Tidegate, accepts: str, model: str) -> None:
        body = {"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
        straight, through = (raw_http.infer(port, model, body, fields=[("Accept-Encoding", accepts)]) for port in doors(gateway))
        assert through == straight

    def test_a_compressed_prompt(self, gateway: Tidegate) -> None:
        body = json.dumps({"text": "hi", "count": 1}).encode()
        plain, packed = (
            to_the_end(gateway.port("http"), "/v2/models/repeat_text/generate_stream", content, fields=fields)
            for content, fields in ((body, ""), (gzip.compress(body), "Content-Encoding: gzip\r\n"))
        )
        assert packed == plain


PARAMETERS: list[dict[str, Any]] = [
    {name: value}
    for name in ("priority", "timeout", "sequence_id", "sequence_start", "sequence_end", "binary_data_output", "own", "triton_own")
    for value in (1, -1, 1.5, "s", True, None, [1], {"a": 1}, 2**63, 2**70)
]


def test_parameters_of_any_type_get_tritons_own_answer(gateway: Tidegate) -> None:
    for parameters in PARAMETERS:
        body = {"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}], "parameters": parameters}
        straight, through = (raw_http.infer(port, "echo", body) for port in doors(gateway))
        assert through == straight, parameters


def test_a_large_json_tensor_is_tritons_to_read(gateway: Tidegate) -> None:
    values = json.dumps([0.5] * 200_000)
    for data in (values, "[" + ",".join(f"[{number}]" for number in range(200_000)) + "]", values[:-1] + "x]"):
        body = ('{"inputs":[{"name":"INPUT0","shape":[1,200000],"datatype":"FP32","data":%s}]}' % data).encode()  # noqa: UP031
        straight, through = (raw_http.infer(port, "echo", body) for port in doors(gateway))
        assert _without_place(through) == _without_place(straight)


def _without_place(answer: bytes) -> bytes:
    return re.sub(rb" at \d+", b"", answer)
